"""The metrics in a run's result."""

from __future__ import annotations

from tfcluster.core.run_events import LatestMetrics


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
