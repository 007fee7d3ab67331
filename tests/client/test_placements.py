"""Lines that servers really printed, read as placements."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.runs.placements import PlacementContext, PlacementFilter, Placements, parse_line
from tfcluster.core.run_events import PlacementEvent, to_record
from tfcluster.errors import ClusterError

CPU = "/job:worker/replica:0/task:1/device:CPU:0"
RAW = f"pi-3f9a/while/cond/_0/Less: (Less): {CPU}"
LOGGED = f"I0000 00:00:1795290378.210415   12728 placer.cc:162] {RAW}"


class SilentStream:
    """The response of an agent that hangs."""

    timeout = 10.0

    def __next__(self) -> Any:
        raise ClusterError("the agent has not answered within 10 s")


def test_a_line_of_the_placer_is_an_event_of_the_contract() -> None:
    assert parse_line(RAW) == PlacementEvent("pi-3f9a/while/cond/_0/Less", "Less", CPU)
    assert to_record(PlacementEvent("Mean", "Mean", CPU)) == {
        "event": "placement",
        "op": "Mean",
        "type": "Mean",
        "device": CPU,
    }
    everything = PlacementFilter(None)
    assert everything.parse_line(RAW) == PlacementEvent("pi-3f9a/while/cond/_0/Less", "Less", CPU)


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
def test_other_lines_are_passed_over(line: str) -> None:
    assert parse_line(line) is None


def test_only_those_of_the_run_once_each_without_its_scope() -> None:
    mine = PlacementFilter("pi-3f9a")
    assert mine.parse_line(RAW) == PlacementEvent("while/cond/_0/Less", "Less", CPU)
    assert mine.parse_line(RAW) is None
    assert mine.parse_line(RAW.replace("task:1", "task:0")) is not None, "placed elsewhere now, as after a lost task"
    assert mine.parse_line(RAW.replace("3f9a", "3f9b")) is None
    assert mine.parse_line(f"Func/{RAW}") is None, "what a call of a function adds is no operation of the program"


def test_a_request_that_is_not_answered_times_out() -> None:
    context = PlacementContext(StreamContext("alpha"), cast(Placements, None))
    with pytest.raises(ClusterError, match="has not answered"):
        next(context.events(cast(Any, SilentStream())))
