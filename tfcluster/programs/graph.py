"""An expression as a graph: each name an operation on a device of its own, run exactly where it is placed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import tensorflow as tf

from tfcluster.core.expression import Expression, parse, syntax_error
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.context import Context
from tfcluster.programs.session import count_operations, open_session, run_graph, without_replica

_MAKERS = {
    "copy": tf.identity,
    "negative": tf.negative,
    "+": tf.add,
    "-": tf.subtract,
    "*": tf.multiply,
    "/": tf.divide,
    "**": tf.pow,
}
# Up to here a float64 that has no fraction is the whole number that it looks like.
_EXACT = 2.0**53


def run(
    context: Context, *, expression: str, given: Mapping[str, float], placed: Mapping[str, str], strict: bool
) -> dict[str, Any]:
    """Compute an expression, in float64.

    Args:
        context: The run. Its devices take the names in turn.
        expression: What to compute, in the language of `model.expression`.
        given: Values of names; they count in place of what the expression assigns to these.
        placed: TensorFlow device strings, by the name that goes there.
        strict: A device that is not there is an error; else the name goes to the CPU of its task.

    Returns:
        value, the name that has it, and operations: for each name its value and the device that it ran on.

    Raises:
        ClusterError: The expression or a device string is wrong, or a value is infinite or none.
    """
    program = parse(expression, given)
    devices = choose_devices(program, context, placed)
    graph, tensors = _build(context, program, devices)
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    with open_session(context, graph, devices.values(), as_written=True) as session:
        found = [device.name for device in session.list_devices()]
        absent = {name: device for name, device in devices.items() if not _is_there(device, found)}
        if strict and absent:
            raise _absent(absent, found)
        values = [float(value) for value in session.run(tensors, options=options, run_metadata=metadata)]
    _refuse_what_is_not_finite(program, values)
    for device, count in count_operations(metadata).items():
        context.work[device] = {"ops": count}
    ran_on = {node.name: without_replica(node.device) for part in metadata.partition_graphs for node in part.node}
    operations = {
        name: {"value": _plain(values[at]), "device": ran_on[tensors[at].op.name]} for name, at in program.names.items()
    }
    for name, device in absent.items():
        asked, got = without_replica(device), operations[name]["device"]
        context.notes.append(f"{name} asked for {asked}, which the cluster has not: placed on {got}")
    return {"value": operations[program.result]["value"], "name": program.result, "operations": operations}


def choose_devices(program: Expression, context: Context, placed: Mapping[str, str]) -> dict[str, str]:
    """The device string of each name.

    A name in `placed` goes there: what its string leaves out is that of the device whose turn it is, but a job
    without a task means its task 0, and a task without a device leaves the choice among its devices to TensorFlow.

    Raises:
        ClusterError: A string is malformed, or its task or name is not there (usage).
    """
    for name in placed:
        if name not in program.names:
            hint = f"Its names are {', '.join(program.names)}."
            raise _usage(f"--device {name}={placed[name]}: the expression has no {name}", hint)
    devices = {}
    for number, name in enumerate(program.names):
        turn = context.devices[number % len(context.devices)]
        devices[name] = _complete(name, placed[name], turn, context.addresses) if name in placed else turn
    return devices


def _complete(name: str, wanted: str, turn: str, addresses: Mapping[str, list[str]]) -> str:
    """A device string of one task, from one that may leave parts out."""
    option = f"--device {name}={wanted}"
    try:
        given, other = tf.DeviceSpec.from_string(wanted), tf.DeviceSpec.from_string(turn)
    except ValueError:
        hint = "Write it as /job:worker/task:1/device:CPU:0; parts may be left out."
        raise _usage(f"{option}: this is not the TensorFlow device string of one device", hint) from None
    job = given.job or other.job
    task = given.task if given.task is not None else (other.task if given.job is None else 0)
    if given.replica or task >= len(addresses.get(job, ())):
        tasks = (f"/job:{job}/task:{task}" for job, listed in addresses.items() for task in range(len(listed)))
        raise _usage(f"{option}: the cluster has no such task", f"Its tasks are {', '.join(tasks)}.")
    return str(given.replace(job=job, replica=0, task=task).to_string())


def _build(context: Context, program: Expression, devices: Mapping[str, str]) -> tuple[tf.Graph, list[Any]]:
    """A graph with an operation for each of the program's, and their values in the same order."""
    named = {at: name for name, at in program.names.items()}
    tensors: list[Any] = []
    with run_graph(context) as graph:
        for at, operation in enumerate(program.operations):
            operands = [tensors[operand] for operand in operation.operands]
            # What a name needs on its way to its value runs beside it, under names below its own.
            label = named.get(at, f"{operation.name}/step")
            with tf.device(devices[operation.name]):
                if operation.operator == "number":
                    # TensorFlow copies a constant to every device that uses it; what passes it on stays in its place.
                    tensors.append(tf.identity(tf.constant(operation.number, tf.float64), name=label))
                else:
                    tensors.append(_MAKERS[operation.operator](*operands, name=label))
    return graph, tensors


def _is_there(device: str, found: Iterable[str]) -> bool:
    """Whether a device string names one of the devices, or leaves the choice among a task's."""
    return "/device:" not in device or any(fnmatchcase(each, device) for each in found)


def _refuse_what_is_not_finite(program: Expression, values: list[float]) -> None:
    """Raise an error that shows the first operation without a finite value.

    Raises:
        ClusterError: There is one.
    """
    for operation, value in zip(program.operations, values, strict=True):
        if math.isfinite(value):
            continue
        left, right = (values[operand] for operand in operation.operands)  # a number and a negative are finite
        if (operation.operator == "/" and right == 0) or (operation.operator == "**" and left == 0):
            why = "a division by zero"
        else:
            why = "not a real number" if math.isnan(value) else "too large for a float64"
        words = f"{_operand(left)} {operation.operator} {_operand(right)} is {why}"
        raise syntax_error(program.source, operation.at, f"in {operation.name}: {words}", exit_code=ExitCode.FAILED)


def _plain(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value


def _operand(value: float) -> str:
    return f"({_plain(value)})" if value < 0 else str(_plain(value))


def _absent(absent: Mapping[str, str], found: Iterable[str]) -> ClusterError:
    wanted = ", ".join(f"{name} asks for {without_replica(device)}" for name, device in absent.items())
    devices = ", ".join(sorted(map(without_replica, found)))
    return ClusterError(f"{wanted}, which the cluster has not", hint=f"These tasks have {devices}. Or drop --strict.")


def _usage(message: str, hint: str) -> ClusterError:
    return ClusterError(message, hint=hint, exit_code=ExitCode.USAGE)
