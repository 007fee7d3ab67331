"""The typed events of a run are the records that its file and `run -o json` have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfcluster.core.run_events import (
    LatestMetrics,
    MemberEvent,
    MetricEvent,
    OutputEvent,
    ResultEvent,
    parse_event,
    to_record,
)

FILES = sorted((Path(__file__).parent.parent / "data" / "format1").rglob("events.jsonl"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_what_0_1_0_has_written_is_the_same_today(path: Path) -> None:
    for line in path.read_text().splitlines():
        event = parse_event(json.loads(line))
        assert event is not None
        assert json.dumps(to_record(event), separators=(",", ":")) == line


def test_only_fields_that_may_be_missing_are_left_out() -> None:
    assert to_record(MetricEvent("loss", None, 1, 0.5)) == {
        "event": "metric",
        "name": "loss",
        "value": None,
        "step": 1,
        "seconds": 0.5,
    }
    assert list(to_record(OutputEvent("stdout", "x", task="worker:0"))) == ["event", "stream", "task", "data"]
    assert "exit_code" in to_record(MemberEvent("worker:0", "a", "exited", 0, exit_code=0))
    assert to_record(ResultEvent("pi-1", "pi", "cancelled", 1.0, None, {}, []))["result"] is None


def test_events_of_other_programs_are_of_no_kind() -> None:
    assert parse_event({"event": "dice", "value": 6}) is None
    assert parse_event({"event": "metric", "worker": "worker:0", "step": 1, "loss": 0.5, "seconds": 1.0}) is None
    assert parse_event({"event": "task_down", "task": "/job:ps/task:0", "problem": "died", "since": 1}) is not None


def test_the_latest_value_of_each_metric_is_in_the_result() -> None:
    metrics = LatestMetrics()
    assert metrics.as_result() == {}
    for event in (
        {"event": "metric", "name": "loss", "value": 0.5},
        {"event": "metric", "name": "accuracy", "value": None},
        {"event": "output"},
        {"event": "metric", "worker": "worker:0", "loss": 4.0, "step": 1},  # a program's own
        {"event": "metric", "name": "loss", "value": "high"},
        {"event": "metric", "name": "loss", "value": 0.25},
    ):
        metrics.add(event)
    assert metrics.as_result() == {"metrics": {"loss": 0.25, "accuracy": None}}


def test_those_of_a_group_are_in_the_order_of_its_members_not_of_their_reports() -> None:
    metrics = LatestMetrics(["worker:0", "worker:1", "worker:2"])
    assert metrics.as_result() == {}
    for task in ("worker:2", "worker:0"):
        metrics.add({"event": "metric", "task": task, "name": "loss", "value": 0.5})
    assert list(metrics.as_result()["metrics"].items()) == [("worker:0", {"loss": 0.5}), ("worker:2", {"loss": 0.5})]
