"""What commands and views make of a run's events."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.client.live.run_history import RunHistory
from tfcluster.client.runs.requests import OutputLines


def series_of(history: RunHistory) -> dict[tuple[str, str], list[Any]]:
    return {(each["name"], each["reporter"]): each["points"] for each in history.to_json()["series"]}


def test_metrics_are_curves_with_a_line_for_each_reporter_and_their_latest_values_are_known() -> None:
    history = RunHistory("script-1")
    history.update({"event": "metric", "name": "loss", "value": 0.5, "step": 3, "seconds": 1.0, "task": "worker:1"})
    history.update({"event": "metric", "series": "worker:0", "step": 9, "name": "loss", "value": 0.1, "seconds": 0.3})
    history.update({"event": "metric", "series": "worker:0", "step": 9, "name": "w", "value": 2.0, "seconds": 0.3})
    history.update({"event": "metric", "task": "a:1", "series": "b", "step": 4, "name": "loss", "value": 0.2})
    assert series_of(history) == {
        ("loss", "worker:1"): [(3, 0.5, 1.0)],
        ("loss", "worker:0"): [(9, 0.1, 0.3)],
        ("w", "worker:0"): [(9, 2.0, 0.3)],
        ("loss", "a:1 b"): [(4, 0.2, None)],
    }


def test_a_long_curve_keeps_its_shape_and_its_last_point() -> None:
    history = RunHistory("script-1")
    last = 100_000
    for step in range(last + 1):
        history.update({"event": "metric", "name": "loss", "value": float(step), "step": step, "seconds": 0.0})
    (points,) = series_of(history).values()
    assert settings.METRIC_POINTS / 2 <= len(points) <= 2 * settings.METRIC_POINTS + 1
    assert points[0][0] == 0
    assert points[-1][0] == last
    gaps = {later[0] - point[0] for point, later in itertools.pairwise(points[:-1])}
    assert len(gaps) == 1


def test_an_event_without_its_fields_is_left_out() -> None:
    history = RunHistory("script-1")
    for event in (
        {},
        {"event": "metric", "name": "loss"},
        {"event": "metric", "name": "loss", "value": "high", "step": 1},
        {"event": "progress", "done": 1},
        {"event": "member"},
        {"event": "graph", "operations": None},
    ):
        history.update(event)
    history.update({"event": "metric", "name": "loss", "value": 0.5, "step": 1, "seconds": 1.0})
    assert series_of(history) == {("loss", ""): [(1, 0.5, 1.0)]}
    assert history.progress is None
    assert history.version == 7, "the agent counts them too"


def lines_of(*parts: tuple[str, bytes]) -> list[Any]:
    """The lines, as pairs of stream and text, of what arrives in these parts."""
    lines = OutputLines()
    events = [
        {"event": "output", "stream": stream, "data": data.decode(errors="surrogateescape")} for stream, data in parts
    ]
    found = [line for event in (*events, {"event": "result"}) for line in lines.convert(event)]
    assert found.pop() == {"event": "result"}
    return [(each["stream"], each["line"]) for each in found]


def test_lines_are_made_of_parts_for_each_stream_and_other_events_are_passed_on() -> None:
    parts = [("stdout", b"o"), ("stderr", b"err\n\xc3"), ("stdout", b"ne\ntwo\n"), ("stderr", b"\xa9\xff")]
    assert lines_of(*parts) == [("stderr", "err"), ("stdout", "one"), ("stdout", "two"), ("stderr", "é\ufffd")]
    assert list(OutputLines().convert({"event": "metric"})) == [{"event": "metric"}]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17])
def test_a_long_line_comes_in_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(settings, "RUN_OUTPUT_LINE_MAX_BYTES", 8)
    line = b"x" * size + b"\nend"
    for found in (lines_of(("stdout", line)), lines_of(*(("stdout", bytes([each])) for each in line))):
        assert "".join(text for _, text in found) == "x" * size + "end"
        assert max(len(text) for _, text in found) <= 8


def test_the_trials_of_a_sweep_have_their_metrics_and_come_in_the_order_of_the_result() -> None:
    history = RunHistory("train-1")
    rows = [
        {"trial": number, "parameters": {"lr": lr}, "state": "running", "metrics": {}, "host": "alpha", "seconds": 0.0}
        for number, lr in enumerate([0.1, 0.2])
    ]
    for row in rows:
        history.update({"event": "trial", **row, "attempt": 0})
    for step in (1, 2):
        history.update({"event": "metric", "task": "trial:1", "name": "loss", "value": 3.0 / step, "step": step})
    value = history.to_json()
    assert value["trials"] == [rows[0], {**rows[1], "metrics": {"loss": 1.5}}]
    assert [(each["reporter"], each["name"]) for each in value["series"]] == [("trial:1", "loss")]
    history.update({"event": "trial", **rows[1], "attempt": 0, "metrics": {"loss": 1.5}, "state": "succeeded"})
    assert [each["state"] for each in history.to_json()["trials"]] == ["running", "succeeded"]
    history.update({"event": "result", "result": {"trials": [rows[1], rows[0]]}})
    assert history.to_json()["trials"] == [rows[1], rows[0]]
