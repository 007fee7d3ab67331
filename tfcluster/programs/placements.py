"""Where the servers place a run's operations, as its steps say in RunMetadata: counted, and reported as events."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfcluster.core.devices import without_replica
from tfcluster.core.run_events import PlacementEvent, to_record
from tfcluster.errors import ClusterError
from tfcluster.programs.context import Context, current_run

# How TensorFlow names what it adds where it divides a graph, and where it replaces a loop or a condition.
_ADDED = re.compile(r".*(_[SG]|/_)\d+")
_SENDS, _RECEIVES = {"_Send", "_HostSend"}, {"_Recv", "_HostRecv"}
_lock = threading.Lock()  # the steps of several devices end at the same time


def run_placed(graph: tf.Graph, run: Callable[..., Any], fetches: Any, feed: Any = None) -> tuple[Any, dict[str, str]]:
    """Return what the `run` of a session fetches, and the device of each operation of the step, without the replica.

    `graph` is that of the session. With `--log-placement` the operations are reported too.
    """
    metadata = tf.compat.v1.RunMetadata()
    values = run(fetches, feed, tf.compat.v1.RunOptions(output_partition_graphs=True), metadata)
    nodes = {node.name: node for part in metadata.partition_graphs for node in part.node if node.device}
    if current_run().log_placement:
        _report(current_run(), graph, nodes)
    return values, {name: without_replica(node.device) for name, node in nodes.items()}


def _report(context: Context, graph: tf.Graph, nodes: Mapping[str, Any]) -> None:
    """Emit the event `graph` with the program's operations that are new, and an event `placement` for each of them.

    On a full disk the events are lost.
    """
    scope = f"{context.run}/"  # of `run_graph`
    written = {operation.name for operation in graph.get_operations()}
    # The bodies of loops and functions are not in the graph as it is written, but they are in its scope.
    kept = {
        name: node
        for name, node in nodes.items()
        if name.startswith(scope)
        and node.op not in _SENDS | _RECEIVES
        and (name in written or not _ADDED.fullmatch(name))
    }
    with _lock, contextlib.suppress(ClusterError):
        placements = {
            name: PlacementEvent(name.removeprefix(scope), node.op, node.device) for name, node in kept.items()
        }
        new = {name: event for name, event in placements.items() if event not in context.placed}
        context.placed.update(new.values())
        if not new:
            return
        inputs = _Inputs(nodes, kept)
        operations = [
            [event.op, event.type, [source.removeprefix(scope) for source in inputs.of(name)]]
            for name, event in new.items()
        ]
        context.emit("graph", operations=operations)
        for event in new.values():
            context.emit(**to_record(event))


class _Inputs:
    """Finds which of the program's operations one of them depends on, through all that TensorFlow has added."""

    def __init__(self, nodes: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._kept = kept
        self._sends = {node.attr["tensor_name"].s: name for name, node in nodes.items() if node.op in _SENDS}

    def of(self, name: str) -> list[str]:
        """Return the names of those that an operation depends on."""
        found: dict[str, None] = {}
        seen: set[str] = set()
        waiting = list(self._direct(self._nodes[name]))
        while waiting:
            source = waiting.pop(0)
            if source in seen or source not in self._nodes:
                continue
            seen.add(source)
            if source in self._kept:
                found[source] = None
            else:
                waiting += self._direct(self._nodes[source])
        return list(found)

    def _direct(self, node: Any) -> Iterator[str]:
        for source in node.input:
            yield source.removeprefix("^").partition(":")[0]
        if node.op in _RECEIVES and (sender := self._sends.get(node.attr["tensor_name"].s)):
            yield sender
