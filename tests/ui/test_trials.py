"""The trials of a sweep as CSV, and the line on what has happened to one."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.core.run_events import TrialEvent
from tfcluster.ui.trials import format_trial, to_csv


def row(**more: Any) -> dict[str, Any]:
    trial = {"trial": 0, "parameters": {"lr": 0.1}, "state": "succeeded", "metrics": {}, "host": "alpha", "seconds": 2}
    return {**trial, **more}


def test_no_two_columns_have_the_same_name() -> None:
    rows = [row(parameters={"lr": 0.1, "state": "a,b"}, metrics={"lr": 1.5, "trial": 7, "loss": None}), row(trial=1)]
    assert to_csv(rows).splitlines() == [
        "trial,lr,parameter state,state,metric lr,metric trial,loss,host,seconds",
        '0,0.1,"a,b",succeeded,1.5,7,,alpha,2',
        "1,0.1,,succeeded,,,,alpha,2",
    ]


@pytest.mark.parametrize(
    ("state", "metrics", "problem", "line"),
    [
        ("running", {}, None, None),
        ("succeeded", {"loss": 0.25}, None, "trial:3 (lr=0.1) succeeded after 2.0s: loss=0.25"),
        ("failed", {"loss": 0.25}, "ValueError: no", "trial:3 (lr=0.1) failed: ValueError: no"),
        ("pending", {}, "the connection is lost", "trial:3 (lr=0.1) restarts: the connection is lost"),
        ("cancelled", {}, None, "trial:3 (lr=0.1) cancelled after 2.0s"),
    ],
)
def test_what_has_happened_to_a_trial(
    state: str, metrics: dict[str, Any], problem: str | None, line: str | None
) -> None:
    assert format_trial(TrialEvent(3, {"lr": 0.1}, state, metrics, "alpha", 2.0, 0, problem)) == line
