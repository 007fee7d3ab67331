"""run expfit on clusters of several topologies: one curve in every mode, in words, as events and as a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXAMPLE, WITH_PLOTS, Sandbox, make_sandbox

LED = "name: led\njobs:\n  master: {tasks: 1}\n  worker: {tasks: 2, cpus: 2}\n  worker_: {tasks: 1}\n"
STEPS = 30
SHORT = ("--steps", str(STEPS), "--batch", "13", "--seed", "3")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """The example, whose weights a ps keeps, and `led`, whose master keeps them."""
    with make_sandbox(tmp_path_factory.mktemp("expfit")) as sandbox:
        sandbox("up", EXAMPLE)
        sandbox("up", sandbox.spec(LED))
        yield sandbox


def losses(result: dict[str, Any]) -> list[float]:
    return [loss for _, loss in result["curve"]]


def tasks_of(event: dict[str, Any]) -> dict[str, int]:
    """How many examples each task saw, on all its devices."""
    seen: dict[str, int] = {}
    for device, work in event["devices"].items():
        task = device.rpartition("/device:")[0].replace("/job:", "").replace("/task", "")
        seen[task] = seen.get(task, 0) + work["examples"]
    return seen


@pytest.mark.slow
def test_data_divided_among_any_devices_give_the_curve_of_one(clusters: Sandbox) -> None:
    alone = clusters.json("run", "expfit", "-c", "led", *SHORT)
    assert tasks_of(alone) == {"master:0": STEPS * 13}
    expected = losses(alone["result"])
    assert len(expected) == STEPS
    examples = {}
    for pattern in ("/job:worker_", "/job:worker", "/job:*"):
        words = ("--mode", "data-parallel", "--devices", pattern)
        event = clusters.json("run", "expfit", "-c", "led", *SHORT, *words)
        assert losses(event["result"]) == pytest.approx(expected, rel=1e-9)
        examples[pattern] = tasks_of(event)
    assert examples["/job:worker_"] == {"master:0": 0, "worker_:0": STEPS * 13}
    assert examples["/job:worker"] == {"master:0": 0, "worker:0": STEPS * 6, "worker:1": STEPS * 7}
    assert sum(examples["/job:*"].values()) == STEPS * 13
    assert all(examples["/job:*"].values())
    assert examples["/job:*"].keys() == {"master:0", "worker:0", "worker:1", "worker_:0"}


@pytest.mark.slow
def test_modes_compared_where_a_ps_keeps_the_weights(clusters: Sandbox, tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    output = clusters(
        "run", "expfit", "-c", "demo", *SHORT, "--compare", "--plot", picture, "-o", "json", env=WITH_PLOTS
    ).stdout
    *earlier, event = [json.loads(line) for line in output.splitlines()]
    assert {each["event"] for each in earlier} == {"run", "metric", "progress"}
    modes = event["result"]["modes"]
    assert [each["mode"] for each in modes] == ["single", "data-parallel", "model-parallel"]
    alone = clusters.json("run", "expfit", "-c", "led", *SHORT)["result"]
    for each in modes:
        assert losses(each) == pytest.approx(losses(alone), rel=1e-9)
        assert each["max_error"] == pytest.approx(alone["max_error"], rel=1e-9)
        assert each["steps"] == STEPS
    # single: all on one; data-parallel: 6 and 7 of 13; model-parallel: all on both.
    assert tasks_of(event) == {"worker:0": STEPS * (13 + 6 + 13), "worker:1": STEPS * (7 + 13), "ps:0": 0}
    assert event["devices"]["/job:ps/task:0/device:CPU:0"]["ops"] > 0
    assert picture.read_text().rstrip().endswith("</svg>")


@pytest.mark.slow
def test_layers_on_two_tasks(clusters: Sandbox) -> None:
    event = clusters.json("run", "expfit", "-c", "led", *SHORT, "--mode", "model-parallel", "--devices", "/job:worker")
    assert tasks_of(event) == {"worker:0": STEPS * 13, "worker:1": STEPS * 13}
    assert event["notes"] == []
    event = clusters.json("run", "expfit", "-c", "led", *SHORT, "--mode", "model-parallel", "--devices", "/job:worker_")
    assert event["notes"] == ["model-parallel: there is only one task, so both layers are on it"]


def test_training_reduces_the_loss_and_reports_it(demo: Sandbox, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    result = demo("run", "expfit", "--seed", "1", "--plot", picture, env=WITH_PLOTS)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("loss 0.00174 after 1,000 steps (single), no further than 0.16 from e^x between")
    assert lines[1].endswith("s, seed 1")
    assert any("⠀" < character <= "⣿" for character in "".join(lines[3:13]))
    assert lines[14].split() == ["1", "1,000"]
    assert result.stderr.splitlines()[-1] == f"the plot is in {picture}"
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.slow
def test_without_unicode_the_chart_is_ascii(demo: Sandbox) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    output = demo("run", "expfit", *SHORT, "--compare", env=environment).stdout
    assert output.isascii()
    lines = output.splitlines()
    assert lines[0].split() == ["MODE", "LOSS", "MAX", "ERROR", "STEPS", "TIME", "STEPS/S"]
    assert [line.split()[0] for line in lines[1:4]] == ["single", "data-parallel", "model-parallel"]
    assert len({tuple(line.split()[1:4]) for line in lines[1:4]}) == 1
    assert "* single   + data-parallel   o model-parallel" in output


def test_a_rate_that_is_too_high_ends_the_run(demo: Sandbox) -> None:
    error = demo("run", "expfit", "--lr", "3", "--seed", "1", code=1).stderr
    assert "the loss is not finite at step " in error
    assert "(single): the learning rate 3 is too high\nhint: Try --lr 0.05." in error


def test_mistakes_that_need_no_cluster(sandbox: Sandbox) -> None:
    assert "does not end in .png" in sandbox("run", "expfit", "--plot", "curve.gif", code=2).stderr
    assert "leave out --mode" in sandbox("run", "expfit", "--compare", "--mode", "single", code=2).stderr
    assert (
        "--plot cannot be combined with --detach"
        in sandbox("run", "expfit", "--detach", "--plot", "curve.png", code=2, env=WITH_PLOTS).stderr
    )
    assert "'--lr'" in sandbox("run", "expfit", "--lr", "nan", code=2).stderr
    assert "no cluster is running" in sandbox("run", "expfit", "--plot", "curve.png", code=3, env=WITH_PLOTS).stderr
