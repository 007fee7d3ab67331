"""What a training says while it goes on, and its result in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tfcluster.core.run_events import MetricEvent, parse_event
from tfcluster.programs.linear import summary
from tfcluster.ui.console import console, error_console
from tfcluster.ui.run_view import Metrics, RunView

RESULT = {
    **{"w": 2.0064, "b": -0.1746, "loss": 0.16227, "steps": 12_000, "examples_per_s": 121_234, "workers": 3},
    **{"optimizer": "adagrad", "lr": 0.8, "sync": False, "seed": 4, "least_squares": {"w": 2.0064, "b": -0.1746}},
    "evaluations": [[0, 1.5], [12_000, 0.16227]],
}


@pytest.fixture(autouse=True)
def fresh_consoles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    console.cache_clear()
    error_console.cache_clear()
    yield
    console.cache_clear()
    error_console.cache_clear()


def metric(worker: str, step: int, name: str = "loss", value: float = 0.162266) -> dict[str, Any]:
    return {"event": "metric", "series": worker, "step": step, "name": name, "value": value, "seconds": 0.5}


def parsed(*values: Any) -> MetricEvent:
    event = parse_event(metric(*values))
    assert isinstance(event, MetricEvent)
    return event


def test_metrics_are_the_latest_of_each_worker_and_the_updates() -> None:
    metrics = Metrics()
    metrics.update(parsed("worker:1", 8))
    metrics.update(parsed("worker:1", 8, "examples_per_s", 121_234))
    metrics.update(parsed("worker:0", 7))
    metrics.update(parsed("worker:0", 1234))
    lines = ["worker:0  step 1,234  loss 0.1623", "worker:1  step 8  loss 0.1623  121 k examples/s"]
    assert metrics.latest() == lines
    assert metrics.changed() == lines
    metrics.update(parsed("worker:0", 2000))
    assert metrics.changed() == ["worker:0  step 2,000  loss 0.1623"]
    assert metrics.changed() == []
    metrics.update(parsed("worker:0", 3000))
    metrics.update(parsed("worker:0 validation", 3000))
    metrics.forget("worker:0")
    assert metrics.latest() == lines[1:], "a trial that has ended is not shown any more"
    assert metrics.changed() == []


def test_metrics_are_printed_with_the_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("tfcluster.ui.run_view.time.monotonic", lambda: now[0])
    view = RunView(silent=False)
    with view:
        view.update({"event": "run", "run": "linear-3f9a", "program": "linear", "devices": []})
        view.update(metric("worker:0", 10))
        now[0] += 1.5
        view.update({"event": "progress", "done": 25, "total": 100, "unit": "steps", "seconds": 1.0})
        view.update(metric("worker:0", 30))
    assert capsys.readouterr().err == (
        "linear-3f9a: 25%, 25 of 100 steps, 25 steps/s, 3.0s left\n  worker:0  step 10  loss 0.1623\n"
    )


def test_metrics_are_below_the_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setattr("tfcluster.ui.run_view.is_interactive", lambda screen: True)
    view = RunView(silent=False)
    with view:
        view.update({"event": "run", "run": "linear-3f9a", "program": "linear", "devices": []})
        view.update(metric("worker:0", 10))
        view.update({"event": "progress", "done": 25, "total": 100, "unit": "steps", "seconds": 1.0})
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"linear-3f9a .*25%", shown)
    assert "worker:0  step 10  loss 0.1623" in shown


def test_the_summary_of_the_result() -> None:
    assert [line.plain for line in summary(RESULT, 3.21)] == [
        "y = 2.006x - 0.1746, mean squared error 0.1623",
        "least squares in closed form: y = 2.006x - 0.1746",
        "scored 2 times, last at step 12,000: 0.1623",
        "12,000 steps, 121 k examples/s, adagrad 0.8, 3 workers asynchronously, seed 4, 3.2s",
    ]
    short = {**RESULT, "sync": True, "least_squares": None, "evaluations": []}
    assert [line.plain for line in summary(short, 3.21)] == [
        "y = 2.006x - 0.1746, mean squared error 0.1623",
        "12,000 steps, 121 k examples/s, adagrad 0.8, 3 workers in step, seed 4, 3.2s",
    ]
