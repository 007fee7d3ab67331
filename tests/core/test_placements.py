"""Lines that servers really printed about placements."""

from __future__ import annotations

import pytest

from tfcluster.core.placements import parse_placement
from tfcluster.core.run_events import PlacementEvent, to_record

CPU = "/job:worker/replica:0/task:1/device:CPU:0"
RAW = f"train/while/cond/_0/Less: (Less): {CPU}"
LOGGED = f"I0000 00:00:1795290378.210415   12728 placer.cc:162] {RAW}"


def test_a_line_of_the_placer_is_an_event_of_the_contract() -> None:
    assert parse_placement(RAW) == PlacementEvent("train/while/cond/_0/Less", "Less", CPU)
    assert to_record(PlacementEvent("Mean", "Mean", CPU)) == {
        "event": "placement",
        "op": "Mean",
        "type": "Mean",
        "device": CPU,
    }


@pytest.mark.parametrize(
    "line",
    [
        LOGGED,  # the same once more
        "",
        "Started server with target: grpc://localhost:2223",
        f"Less: (Less) {CPU}",
        "Less: (Less): somewhere",
        f"my program says: (Less): {CPU} or so",
    ],
)
def test_lines_that_are_no_placements_are_passed_over(line: str) -> None:
    assert parse_placement(line) is None
