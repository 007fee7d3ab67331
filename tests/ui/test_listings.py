"""The list of runs, in a pipe and on a terminal that is too narrow for it."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from tfcluster.ui import listings as module
from tfcluster.ui.listings import format_inputs, format_outcome, show_run, show_runs

_BEGAN = time.mktime((2026, 1, 31, 14, 30, 0, 0, 0, -1))
RUNS: list[dict[str, Any]] = [
    {
        "run": "pi-3f9a",
        "program": "pi",
        "script": None,
        "parameters": {"samples": 10_000_000, "seed": 7},
        "state": "succeeded",
        "seconds": 0.41,
        "started": _BEGAN,
        "ended": _BEGAN + 3.2,
        "missing_output": 0,
        "result": {"pi": 3.14145, "stderr": 0.000519, "samples": 10_000_000},
        "error": None,
    },
    {
        "run": "train-77ab",
        "program": "script",
        "script": "train.py",
        "parameters": {"path": "/somewhere/train.py", "args": ["--epochs", "3"], "cwd": "/", "seed": None},
        "state": "failed",
        "seconds": 75.0,
        "started": _BEGAN,
        "ended": _BEGAN + 75.2,
        "missing_output": 0,
        "result": None,
        "error": {"message": "train.py ended with exit code 3\nand more", "hint": "", "exit_code": 1},
    },
]


def shown(monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    target = Console(file=io.StringIO(), width=width, force_terminal=False)
    monkeypatch.setattr(module, "console", lambda: target)
    show_runs(RUNS)
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue().splitlines()


def test_a_line_for_each_or_a_paragraph_where_the_table_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, 1000) == [
        "RUN         PROGRAM   STATE      STARTED                           TIME  INPUTS                   RESULT",
        "pi-3f9a     pi        succeeded  2026-01-31 14:30:00  0.4s, 3.2s in all  samples=10000000 seed=7  pi=3.14145 "
        "stderr=0.000519",
        "train-77ab  train.py  failed     2026-01-31 14:30:00             1m 15s  train.py --epochs 3      "
        "train.py ended with exit code 3",
    ]
    assert shown(monkeypatch, 40) == [
        "pi-3f9a pi succeeded 2026-01-31 14:30:00",
        "  0.4s, 3.2s in all",
        "  samples=10000000 seed=7",
        "  pi=3.14145 stderr=0.000519",
        "train-77ab train.py failed 2026-01-31",
        "  14:30:00 1m 15s",
        "  train.py --epochs 3",
        "  train.py ended with exit code 3",
    ]


def test_the_record_of_a_run_says_how_it_ended_and_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(run: dict[str, Any]) -> list[str]:
        target = Console(file=io.StringIO(), width=200, force_terminal=False)
        monkeypatch.setattr(module, "console", lambda: target)
        show_run({"origin": None, **run}, "demo")
        assert isinstance(target.file, io.StringIO)
        return [" ".join(line.split()) for line in target.file.getvalue().splitlines()]

    failed = lines({**RUNS[1], "ended": _BEGAN + 75.0, "result": {"exit_code": 3}})
    assert failed[2:5] == ["started 2026-01-31 14:30:00", "ended 2026-01-31 14:31:15", "time 1m 15s"]
    assert failed[-2:] == ["exit code 3", "log `tfcluster logs -c demo train-77ab`"]
    waited = lines({**RUNS[0], "ended": _BEGAN + 5.0})
    assert waited[2:5] == [
        "started 2026-01-31 14:30:00",
        "ended 2026-01-31 14:30:05",
        "time 0.4s, 5.0s in all",
    ]
    assert not any(line.startswith(("exit code", "log")) for line in waited)
    running = lines({**RUNS[0], "state": "running", "ended": None})
    assert running[3] == "time 0.4s"


def test_inputs_and_outcomes_of_programs_scripts_and_errors() -> None:
    inputs = {"program": "pi", "parameters": {"points": 100, "seed": 7, "batch": 128}}
    assert format_inputs({**inputs, "result": None}) == "points=100 seed=7 batch=128"
    assert (
        format_inputs({**inputs, "result": {"points": 100, "batch": 101}}) == "points=100 seed=7 batch=128 (used 101)"
    )
    message = "the driver of pi-1 died (SIGKILL); its last output:\n  Traceback\n  MemoryError"
    run = {**RUNS[1], "error": {"message": message}}
    assert format_outcome(run) == "the driver of pi-1 died (SIGKILL); its last output: MemoryError"
    run = {**RUNS[1], "error": None, "result": {"exit_code": 0, "metrics": {"loss": 0.25, "norm": None}}}
    assert format_outcome(run) == "loss=0.25 norm=not finite"
    assert format_outcome({**run, "result": {"exit_code": 0}}) == ""
    assert format_outcome({**run, "result": {"exit_code": 0, "restarts": 0}}) == ""
    assert format_outcome({**run, "result": {"exit_code": 0, "restarts": 2}}) == "2 restarts"
    group = {"exit_code": 0, "restarts": 1, "metrics": {"worker:0": {"loss": 0.25}}}
    assert format_outcome({**run, "result": group}) == "worker:0: loss=0.25; 1 restart"


@pytest.mark.parametrize("width", [20, 40, 60, 70, 75, 80, 90, 100, 120])
def test_numbers_are_not_split_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    words = "\n".join(shown(monkeypatch, width)).split()
    for word in ("pi-3f9a", "2026-01-31", "14:30:00", "samples=10000000", "seed=7", "pi=3.14145", "stderr=0.000519"):
        assert word in words
