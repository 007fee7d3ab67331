"""What a run reports about a step on two devices: the program's operations, and nothing that TensorFlow adds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from tfcluster.errors import ClusterError
from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.placements import run_placed
from tfcluster.programs.sessions import run_graph, session_config

Event = dict[str, Any]


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def context(events: list[Event]) -> Context:
    def emit(event: str, **fields: Any) -> None:
        events.append({"event": event, **fields})

    context = Context("pi-1", {"localhost": ["localhost:1"]}, (), emit, log_placement=True)
    set_current_run(context)
    return context


def device(number: int) -> str:
    return f"/job:localhost/replica:0/task:0/device:CPU:{number}"


class Built:
    """A graph of two devices: `given` is fed, `total_S1` is added up on CPU:1, and a loop on CPU:1 begins with it."""

    def __init__(self, context: Context) -> None:
        with run_graph() as self.graph:
            with tf.device("/device:CPU:0"):
                self.given = tf.compat.v1.placeholder(tf.float32, [], name="given")
                square = tf.square(self.given, name="square")
            with tf.device("/device:CPU:1"):
                self.total = tf.add(square, 1.0, name="total_S1")
                (self.loop,) = tf.while_loop(lambda value: value < 100.0, lambda value: value * 2.0, [self.total])
        config = session_config(as_written=False)
        config.device_count["CPU"] = 2
        self.session = tf.compat.v1.Session(graph=self.graph, config=config)

    def step(self) -> tuple[Any, dict[str, str]]:
        return run_placed(self.session.run, [self.total, self.loop], {self.given: 3.0})


def test_each_operation_of_the_program_is_reported_once(context: Context, events: list[Event]) -> None:
    built = Built(context)
    values, placed = built.step()
    assert values == [10.0, 160.0]
    found = {event["op"]: (event["type"], event["device"]) for event in events if event["event"] == "placement"}
    assert found["square"] == ("Square", device(0))
    assert found["total_S1"] == ("AddV2", device(1)), "named like a transfer, but it is the program's"
    assert any(name.startswith("while/") and kind == "Mul" for name, (kind, _) in found.items()), "the loop's body"
    added = {name for name, (kind, _) in found.items() if name.startswith(("_", "Func/", "pi-1/")) or kind[0] == "_"}
    assert added == set()
    assert "given" not in found, "what is fed is not executed"
    assert len(placed) > len(found), "the counts have transfers too"
    (graph,) = (event for event in events if event["event"] == "graph")
    assert [name for name, _, _ in graph["operations"]] == list(found)
    inputs = {name: sources for name, _, sources in graph["operations"]}
    assert "square" in inputs["total_S1"], "through the transfer between the devices"
    assert any("total_S1" in sources for name, sources in inputs.items() if name.startswith("while/"))
    reported = len(events)
    built.step()
    assert len(events) == reported


def test_what_a_later_graph_places_elsewhere_is_reported_again(context: Context, events: list[Event]) -> None:
    Built(context).step()
    with run_graph() as graph, tf.device("/device:CPU:1"):
        moved = tf.square(tf.random.uniform([]), name="square")
    config = session_config(as_written=False)
    config.device_count["CPU"] = 2
    run_placed(tf.compat.v1.Session(graph=graph, config=config).run, moved)
    devices = [event["device"] for event in events if event.get("op") == "square"]
    assert devices == [device(0), device(1)]


def test_without_the_option_and_on_a_full_disk_the_step_is_as_usual(context: Context, events: list[Event]) -> None:
    def refuse(event: str, **fields: Any) -> None:
        raise ClusterError("no space left on device")

    for other in (replace(context, log_placement=False), replace(context, emit=refuse)):
        set_current_run(other)
        values, placed = Built(other).step()
        assert values == [10.0, 160.0]
        assert placed["pi-1/square"] == "/job:localhost/task:0/device:CPU:0"
    assert events == []
