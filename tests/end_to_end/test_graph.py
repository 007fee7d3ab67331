"""run graph on a cluster: values, where each name ran, and devices that are asked for."""

from __future__ import annotations

import pytest

from tests.conftest import Sandbox

W0, W1, PS = "/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0", "/job:ps/task:0/device:CPU:0"


def test_the_default_is_split_over_the_workers(demo: Sandbox) -> None:
    result = demo.json("run", "graph")
    assert result["result"] == {
        "value": 238,
        "name": "y",
        "operations": {
            "x": {"value": 2, "device": W0},
            "y1": {"value": 302, "device": W1},
            "y2": {"value": -64, "device": W0},
            "y": {"value": 238, "device": W1},
        },
    }
    assert set(result["devices"]) == {W0, W1}
    assert all(work["ops"] >= 4 for work in result["devices"].values())
    assert result["notes"] == []


@pytest.mark.slow
def test_an_expression_of_ones_own_with_another_x(demo: Sandbox) -> None:
    options = ("x = 5; (x - 8) * (x + 1)", "--x", "7.5", "--devices", "/job:ps")
    result = demo.json("run", "graph", *options)["result"]
    assert (result["value"], result["operations"]["x"]["device"]) == (-4.25, PS)


def test_a_missing_gpu(demo: Sandbox) -> None:
    asked = "/job:worker/task:1/device:GPU:0"
    error = demo("run", "graph", "--device", f"y2={asked}", "--strict", code=1).stderr
    assert error.startswith(f"error: y2 asks for {asked}, which the cluster does not have\nhint: ")


def test_for_people(demo: Sandbox) -> None:
    lines = demo("run", "graph", "--device", "y2=/job:ps").stdout.splitlines()
    assert lines[0] == "y = 238"
    assert [line.split() for line in lines[3:8]] == [
        ["OPERATION", "VALUE", "RAN", "ON"],
        ["x", "2", W0],
        ["y1", "302", W1],
        ["y2", "-64", PS],
        ["y", "238", W1],
    ]
    assert [line.split()[0] for line in lines[9:]] == ["DEVICE", PS, W0, W1]
