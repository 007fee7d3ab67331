"""What a run reports about its steps on a server with several devices: what the program has, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from tfcluster.core.placements import parse_placement
from tfcluster.core.run_events import PlacementEvent, to_record
from tfcluster.errors import ClusterError
from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.placements import run_placed
from tfcluster.programs.sessions import open_session, run_graph

Event = dict[str, Any]


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def context(local_run: Callable[[int], Context], events: list[Event]) -> Context:
    context = local_run(2)
    context.log_placement = True
    context.emit = lambda event, **fields: events.append({"event": event, **fields})
    return context


class Built:
    """A graph on two devices: `given` is fed, `total_S1` is added up, and a loop begins with it after a `last` step."""

    def __init__(self, context: Context, *, moved: bool = False) -> None:
        first, second = reversed(context.devices) if moved else context.devices
        with run_graph() as self.graph:
            with tf.device(first):
                self.given = tf.compat.v1.placeholder(tf.float32, [None, 2], name="given")
                square = tf.square(self.given, name="square")
            with tf.device(second):
                product = tf.nn.bias_add(tf.matmul(square, square, transpose_b=True), [1.0], name="product")
                self.total = tf.reduce_sum(tf.nn.relu(product, name="relu"), name="total_S1")
            with tf.device(first):
                last = tf.negative(self.total, name="last")
            with tf.device(second), tf.name_scope("/"):  # not in the scope of the run
                self.outside = tf.add(last, 1.0, name="outside")
            with tf.device(second), tf.control_dependencies([self.outside]):
                (self.loop,) = tf.while_loop(lambda value: value < 100.0, lambda value: value * 2.0, [self.total])
        self.session = open_session(self.graph, context.devices)

    def step(self) -> tuple[Any, dict[str, str]]:
        fetched = {"values": [self.total, self.loop, self.outside], "name": f"{self.total.name}"}
        return run_placed(self.graph, self.session.run, fetched, {self.given: [[1.0, 2.0]]})


def placements(events: list[Event]) -> dict[str, tuple[str, str]]:
    return {event["op"]: (event["type"], event["device"]) for event in events if event["event"] == "placement"}


def test_each_operation_of_the_program_is_reported_once(context: Context, events: list[Event]) -> None:
    built = Built(context)
    values, placed = built.step()
    assert values["values"] == [18.0, 144.0, -17.0]
    found = placements(events)
    first, second = context.devices
    assert found["square"] == ("Square", first)
    assert found["total_S1"] == ("Sum", second), "named like what TensorFlow adds, but it is the program's"
    assert found["last"] == ("Neg", first)
    assert any("Fused" in kind for kind, _ in found.values()), "operations that the server has fused"
    assert any(name.startswith("while/") and kind == "Mul" for name, (kind, _) in found.items()), "the loop's body"
    added = re.compile(r"_.*|Func/.*|.*script-1.*|outside|.*_G\d+|.*/_\d+")
    assert any(added.fullmatch(name.removeprefix("script-1/")) for name in placed), "the counts have them"
    assert [name for name in found if added.fullmatch(name)] == []
    assert {kind for kind, _ in found.values()} & {"_Send", "_Recv", "_HostSend", "_HostRecv"} == set()
    assert "given" not in found, "what is fed is not executed"
    (graph,) = (event for event in events if event["event"] == "graph")
    assert [name for name, _, _ in graph["operations"]] == list(found)
    inputs = {name: sources for name, _, sources in graph["operations"]}
    assert inputs["last"] == ["total_S1"], "through the transfer between the devices"
    assert any("last" in sources for name, sources in inputs.items() if name.startswith("while/")), "through `outside`"
    reported = len(events)
    built.step()
    assert len(events) == reported


def test_what_another_graph_places_elsewhere_is_reported_again(context: Context, events: list[Event]) -> None:
    for moved in (False, True):
        Built(context, moved=moved).step()
    assert [event["device"] for event in events if event.get("op") == "square"] == list(context.devices)


def test_without_the_option_and_on_a_full_disk_the_step_is_as_usual(context: Context, events: list[Event]) -> None:
    def refuse(event: str, **fields: Any) -> None:
        raise ClusterError("no space left on device")

    for other in (replace(context, log_placement=False), replace(context, emit=refuse)):
        set_current_run(other)
        values, placed = Built(other).step()
        assert values["values"] == [18.0, 144.0, -17.0]
        assert placed["script-1/square"] == context.devices[0].replace("/replica:0", "")
    assert events == []


WORKER_CPU = "/job:worker/replica:0/task:1/device:WORKER_CPU:0"
RAW = f"train/while/cond/_0/Less: (Less): {WORKER_CPU}"
LOGGED = f"I0000 00:00:1795290378.210415   12728 placer.cc:162] {RAW}"


def test_a_line_of_the_placer_is_an_event_of_the_contract() -> None:
    assert parse_placement(RAW) == PlacementEvent("train/while/cond/_0/Less", "Less", WORKER_CPU)
    assert to_record(PlacementEvent("Mean", "Mean", WORKER_CPU)) == {
        "event": "placement",
        "op": "Mean",
        "type": "Mean",
        "device": WORKER_CPU,
    }


@pytest.mark.parametrize(
    "line",
    [
        LOGGED,  # the same once more
        "",
        "Started server with target: grpc://localhost:2223",
        f"Less: (Less) {WORKER_CPU}",
        "Less: (Less): somewhere",
        f"my program says: (Less): {WORKER_CPU} or so",
    ],
)
def test_lines_that_are_no_placements_are_passed_over(line: str) -> None:
    assert parse_placement(line) is None
