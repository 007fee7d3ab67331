"""Compute an arithmetic expression as a graph in which each name is an operation placed on its own device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import tensorflow as tf

from tfcluster.core.devices import without_replica
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.programs.api import Context
from tfcluster.programs.graph.parser import Expression, parse, syntax_error
from tfcluster.programs.sessions import count_operations, open_session, run_graph

_MAKERS = {
    "copy": tf.identity,
    "negative": tf.negative,
    "+": tf.add,
    "-": tf.subtract,
    "*": tf.multiply,
    "/": tf.divide,
    "**": tf.pow,
}
# Up to this magnitude a float64 represents every integer exactly.
_EXACT = 2.0**53


def run(
    context: Context, *, expression: str, overrides: Mapping[str, float], placed: Mapping[str, str], strict: bool
) -> dict[str, Any]:
    """Compute an expression in float64; a value that is infinite or NaN is an error.

    If `strict`, a device that does not exist is an error. Otherwise the name is placed on the CPU of its task.
    `overrides` and `placed` are as in `parse` and `choose_devices`.

    Returns:
        value (the result), name (the name that has this value), and operations (the value of each name and the device
        on which it ran).
    """
    program = parse(expression, overrides)
    devices = choose_devices(program, context, placed)
    graph, tensors = _build(context, program, devices)
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    with open_session(context, graph, devices.values(), as_written=True) as session:
        existing = [device.name for device in session.list_devices()]
        missing = {name: device for name, device in devices.items() if not _exists(device, existing)}
        if strict and missing:
            raise _missing_devices_error(missing, existing)
        values = [float(value) for value in session.run(tensors, options=options, run_metadata=metadata)]
    _check_finite(program, values)
    for device, count in count_operations(metadata).items():
        context.device_stats[device] = {"ops": count}
    ran_on = {node.name: without_replica(node.device) for part in metadata.partition_graphs for node in part.node}
    operations = {
        name: {"value": _plain(values[at]), "device": ran_on[tensors[at].op.name]} for name, at in program.names.items()
    }
    for name, device in missing.items():
        actual = operations[name]["device"]
        context.notes.append(
            f"{name} asked for {without_replica(device)}, which the cluster does not have: placed on {actual}"
        )
    return {"value": operations[program.result]["value"], "name": program.result, "operations": operations}


def choose_devices(program: Expression, context: Context, placed: Mapping[str, str]) -> dict[str, str]:
    """Return the device string of each name, by default round-robin.

    `placed` has the TensorFlow device strings of names that are placed elsewhere. Omitted parts of the device string
    are taken from the device whose turn it is, with two exceptions: a job without a task means task 0 of the job, and
    for a task without a device TensorFlow chooses among the task's devices.
    """
    for name in placed:
        if name not in program.names:
            hint = f"Its names are {', '.join(program.names)}."
            raise usage_error(f"--device {name}={placed[name]}: the expression has no {name}", hint)
    devices = {}
    for number, name in enumerate(program.names):
        default = context.devices[number % len(context.devices)]
        devices[name] = _complete(name, placed[name], default, context.addresses) if name in placed else default
    return devices


def _complete(name: str, requested: str, default: str, addresses: Mapping[str, list[str]]) -> str:
    """Return a device string with job, replica and task, by default those of `default`."""
    option = f"--device {name}={requested}"
    try:
        given, other = tf.DeviceSpec.from_string(requested), tf.DeviceSpec.from_string(default)
    except ValueError:
        hint = "Write it as /job:worker/task:1/device:CPU:0; parts can be left out."
        raise usage_error(f"{option}: this is not the TensorFlow device string of one device", hint) from None
    job = given.job or other.job
    task = given.task if given.task is not None else (other.task if given.job is None else 0)
    if given.replica or task >= len(addresses.get(job, ())):
        tasks = (f"/job:{job}/task:{task}" for job, listed in addresses.items() for task in range(len(listed)))
        raise usage_error(f"{option}: the cluster has no such task", f"Its tasks are {', '.join(tasks)}.")
    return str(given.replace(job=job, replica=0, task=task).to_string())


def _build(context: Context, program: Expression, devices: Mapping[str, str]) -> tuple[tf.Graph, list[Any]]:
    """Build the graph of an expression; return it with the tensor of each operation, in their order."""
    named = {at: name for name, at in program.names.items()}
    tensors: list[Any] = []
    with run_graph(context) as graph:
        for at, operation in enumerate(program.operations):
            operands = [tensors[operand] for operand in operation.operands]
            # The intermediate steps of a name are placed on its device, and named in its scope.
            label = named.get(at, f"{operation.name}/step")
            with tf.device(devices[operation.name]):
                if operation.operator == "number":
                    # TensorFlow copies a constant to every device that uses it; an identity stays where it is placed.
                    tensors.append(tf.identity(tf.constant(operation.number, tf.float64), name=label))
                else:
                    tensors.append(_MAKERS[operation.operator](*operands, name=label))
    return graph, tensors


def _exists(device: str, existing: Iterable[str]) -> bool:
    """Return whether a device string names one of the devices, or leaves the choice among a task's devices open."""
    return "/device:" not in device or any(fnmatchcase(each, device) for each in existing)


def _check_finite(program: Expression, values: list[float]) -> None:
    """Check that all values are finite; the error shows the first operation whose value is not."""
    for operation, value in zip(program.operations, values, strict=True):
        if math.isfinite(value):
            continue
        # Numbers, copies and negatives of finite values are finite, so this operation has two operands.
        left, right = (values[operand] for operand in operation.operands)
        if (operation.operator == "/" and right == 0) or (operation.operator == "**" and left == 0):
            problem = "a division by zero"
        else:
            problem = "not a real number" if math.isnan(value) else "too large for a float64"
        message = f"{_operand(left)} {operation.operator} {_operand(right)} is {problem}"
        raise syntax_error(program.source, operation.at, f"in {operation.name}: {message}", exit_code=ExitCode.FAILED)


def _plain(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value


def _operand(value: float) -> str:
    return f"({_plain(value)})" if value < 0 else str(_plain(value))


def _missing_devices_error(missing: Mapping[str, str], existing: Iterable[str]) -> ClusterError:
    requests = ", ".join(f"{name} asks for {without_replica(device)}" for name, device in missing.items())
    devices = ", ".join(sorted(map(without_replica, existing)))
    return ClusterError(
        f"{requests}, which the cluster does not have",
        hint=f"The cluster's tasks have {devices}. Choose one of these, or drop --strict.",
    )
