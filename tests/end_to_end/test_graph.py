"""run graph on a cluster: values, where each name ran, and devices that are asked for."""

from __future__ import annotations

import json

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
    source = "x = 5; (x - 8) * (x + 1)"
    assert demo.json("run", "graph", source)["result"]["value"] == -18
    assert demo.json("run", "graph", source, "--x", "7.5")["result"]["value"] == -4.25
    assert demo.json("run", "graph", source, "--devices", "/job:ps")["result"]["operations"]["x"]["device"] == PS


def test_an_operation_is_moved(demo: Sandbox) -> None:
    result = demo.json("run", "graph", "--device", "y2=/job:ps", "--device", "y=/job:worker/task:0/device:CPU:0")
    assert {name: each["device"] for name, each in result["result"]["operations"].items()} == {
        "x": W0,
        "y1": W1,
        "y2": PS,
        "y": W0,
    }
    assert result["result"]["value"] == 238
    assert set(result["devices"]) == {W0, W1, PS}


def test_a_missing_gpu(demo: Sandbox) -> None:
    asked = "/job:worker/task:1/device:GPU:0"
    result = demo.json("run", "graph", "--device", f"y2={asked}")
    assert result["result"]["operations"]["y2"] == {"value": -64, "device": W1}
    assert result["notes"] == [f"y2 asked for {asked}, which the cluster does not have: placed on {W1}"]
    error = demo("run", "graph", "--device", f"y2={asked}", "--strict", code=1).stderr
    assert error.startswith(f"error: y2 asks for {asked}, which the cluster does not have\nhint: ")


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (
            ["--device", "y2=/job:worker/task:2"],
            2,
            "--device y2=/job:worker/task:2: the cluster has no such task\nhint: ",
        ),
        (
            ["--device", "z=/job:ps"],
            2,
            "--device z=/job:ps: the expression has no z\nhint: Its names are x, y1, y2, y.",
        ),
        (["x = 4; y = x / (x - 4)"], 1, "expression:1:14: in y: 4 / 0 is a division by zero\n  x = 4;"),
    ],
)
def test_what_cannot_be_computed(demo: Sandbox, words: list[str], code: int, error: str) -> None:
    assert demo("run", "graph", *words, code=code).stderr.startswith(f"error: {error}")


def test_mistakes_that_need_no_cluster(sandbox: Sandbox) -> None:
    error = sandbox("run", "graph", "x = 5; y + 1", code=2).stderr
    assert error.splitlines() == [
        "error: expression:1:8: y has no value",
        "  x = 5; y + 1",
        "         ^",
        "hint: Names with a value here: x.",
    ]
    assert "'y2' is not NAME=DEVICE" in sandbox("run", "graph", "--device", "y2", code=2).stderr
    assert "nan is not a finite number" in sandbox("run", "graph", "--x", "nan", code=2).stderr
    assert "no cluster is running" in sandbox("run", "graph", code=3).stderr


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


def test_as_events(demo: Sandbox) -> None:
    events = [json.loads(line) for line in demo("run", "graph", "6 * 7", "-o", "json").stdout.splitlines()]
    assert [event["event"] for event in events] == ["run", "result"]
    assert events[1]["result"]["value"] == 42
