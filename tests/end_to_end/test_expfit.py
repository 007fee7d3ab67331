"""run expfit on a cluster: one curve in every mode, in words, as events and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WITH_PLOTS, Sandbox, lines_of

STEPS = 60
SHORT = ("--steps", str(STEPS), "--batch", "13", "--seed", "3")
PNG = b"\x89PNG\r\n\x1a\n"


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
def test_modes_compared_where_a_ps_keeps_the_weights(demo: Sandbox, tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    output = demo("run", "expfit", *SHORT, "--compare", "--plot", picture, "-o", "json", env=WITH_PLOTS).stdout
    *earlier, event = lines_of(output)
    assert {each["event"] for each in earlier} == {"run", "metric", "progress"}
    modes = event["result"]["modes"]
    assert [each["mode"] for each in modes] == ["single", "data-parallel", "model-parallel"]
    alone = demo.json("run", "expfit", *SHORT)["result"]
    for each in modes:
        assert losses(each) == pytest.approx(losses(alone), rel=1e-9)
        assert each["max_error"] == pytest.approx(alone["max_error"], rel=1e-9)
        assert each["steps"] == STEPS
    # single: all on one; data-parallel: 6 and 7 of 13; model-parallel: all on both.
    assert tasks_of(event) == {"worker:0": STEPS * (13 + 6 + 13), "worker:1": STEPS * (7 + 13), "ps:0": 0}
    assert event["devices"]["/job:ps/task:0/device:CPU:0"]["ops"] > 0
    assert picture.read_text().rstrip().endswith("</svg>")


def test_training_reduces_the_loss_and_reports_it(demo: Sandbox, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    result = demo("run", "expfit", "--seed", "1", "--plot", picture, env=WITH_PLOTS)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("loss 0.00174 after 1,000 steps (single), no further than 0.16 from e^x between")
    assert lines[1].endswith("s, seed 1")
    steps, losses = zip(*(line.split() for line in lines[3 : lines.index("", 3)]), strict=True)
    assert (steps[:2], steps[-1]) == (("STEP", "1"), "1,000")
    assert losses[0] == "LOSS"
    assert [float(loss) for loss in losses[1:]] == sorted(map(float, losses[1:]), reverse=True)
    assert losses[-1] == "0.00174"
    assert result.stderr.splitlines()[-1] == f"the plot is in {picture}"
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.slow
def test_modes_compared_in_tables(demo: Sandbox) -> None:
    lines = demo("run", "expfit", *SHORT, "--compare").stdout.splitlines()
    assert lines[0].split() == ["MODE", "LOSS", "MAX", "ERROR", "STEPS", "TIME", "STEPS/S"]
    assert [line.split()[0] for line in lines[1:4]] == ["single", "data-parallel", "model-parallel"]
    assert len({tuple(line.split()[1:4]) for line in lines[1:4]}) == 1
    header, *rows = (line.split() for line in lines[6 : lines.index("", 6)])
    assert header == ["STEP", "SINGLE", "DATA-PARALLEL", "MODEL-PARALLEL"]
    assert [row[0] for row in rows] == ["1", "2", "5", "10", "20", "50", str(STEPS)]
    assert all(len(set(row[1:])) == 1 for row in rows)
