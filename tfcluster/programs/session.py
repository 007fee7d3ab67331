"""Sessions on the cluster that see only the tasks they use, and what a session placed where."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from tfcluster.programs.context import Context

#: How long a call to a task may take where nothing else is said, a step too: those of a bundled program begin with one
#: shard and grow to half a second, and a task that stops answering must not hold the run for ever.
STEP_TIMEOUT_MS = 120_000
_SERVES_TIMEOUT_MS = 10_000
# The graphs that the client was told of; a session may be opened again and again.
_told_of: WeakSet[Any] = WeakSet()
# Kept for good: a session that nobody holds any more closes itself, and waits for its server while it does.
_unanswered: list[Any] = []


def task_of(device: str) -> str:
    """The task of a device, as `/job:worker/task:1`."""
    spec = tf.DeviceSpec.from_string(device)
    return f"/job:{spec.job}/task:{spec.task}"


def without_replica(device: str) -> str:
    """A device's name as results key it: `/job:worker/task:1/device:CPU:0`."""
    return device.replace("/replica:0", "")


@contextlib.contextmanager
def run_graph(context: Context) -> Iterator[tf.Graph]:
    """A graph whose variables are in a container of the run's own, so that two runs at once share none.

    The agent clears the container on every task when the run has ended, however it ended. Operations stand in a name
    scope of the run's too: by it the lines that servers print of their placement are told from those of other runs.
    """
    graph = tf.Graph()
    with graph.as_default(), graph.container(context.run), graph.name_scope(context.run):
        yield graph


def open_session(
    context: Context,
    graph: tf.Graph,
    devices: Iterable[str],
    *,
    as_written: bool = False,
    timeout_ms: int = STEP_TIMEOUT_MS,
) -> Any:
    """A session of `graph` on the tasks of `devices`; the first device's task is its master.

    Without device filters a session waits for every task of the cluster, also for those that it does not use.
    `as_written` is that of `session_config`. A call that takes longer than `timeout_ms` milliseconds raises
    DeadlineExceededError.
    """
    tasks = list(dict.fromkeys(task_of(device) for device in devices))
    config = session_config(as_written=as_written)
    config.device_filters.extend(tasks)
    config.operation_timeout_in_ms = timeout_ms
    if context.log_placement:
        config.log_device_placement = True
        _tell_of_graph(context, graph)
    master = tf.DeviceSpec.from_string(tasks[0])
    return tf.compat.v1.Session(f"grpc://{context.addresses[master.job][master.task]}", graph=graph, config=config)


def serves(context: Context, device: str) -> bool:
    """Whether the task of a device does a step that does nothing, within 10 s."""
    spec = tf.DeviceSpec.from_string(device)
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=_SERVES_TIMEOUT_MS, device_filters=[task_of(device)])
    with tf.Graph().as_default():
        session = tf.compat.v1.Session(f"grpc://{context.addresses[spec.job][spec.task]}", config=config)
        try:
            session.run(tf.no_op())
        except tf.errors.OpError:
            _unanswered.append(session)
            return False
    session.close()
    return True


def _tell_of_graph(context: Context, graph: tf.Graph) -> None:
    """Emit a graph that is about to be placed, once, as [name, type, [names of inputs]] of each operation."""
    if graph in _told_of:
        return
    _told_of.add(graph)
    operations = [
        [
            strip_run_scope(operation.name, context),
            operation.type,
            [strip_run_scope(each.op.name, context) for each in operation.inputs]
            + [strip_run_scope(each.name, context) for each in operation.control_inputs],
        ]
        for operation in graph.get_operations()
    ]
    context.emit("graph", operations=operations)


def strip_run_scope(name: str, context: Context) -> str:
    """An operation's name without the scope of its run."""
    return name.removeprefix(f"{context.run}/")


def session_config(*, as_written: bool) -> Any:
    """How sessions run graphs.

    Args:
        as_written: Run every operation that is in the graph, on its device or, where there is none of that type, on
            its task's CPU. Else operations may be folded together, and a device that is not there is an error.
    """
    config = tf.compat.v1.ConfigProto(allow_soft_placement=as_written)
    if as_written:
        config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def count_operations(metadata: Any) -> dict[str, int]:
    """Operations by device (its name without the replica) in the graphs that the servers ran for a step.

    Args:
        metadata: A RunMetadata of a step that was run with `output_partition_graphs`.
    """
    counts: dict[str, int] = {}
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if node.device:
                device = without_replica(node.device)
                counts[device] = counts.get(device, 0) + 1
    return counts
