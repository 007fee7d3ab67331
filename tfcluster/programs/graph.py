"""Compute an arithmetic expression as a graph in which each name is an operation placed on its own device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import tfcluster
from tfcluster.core.devices import without_replica
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.programs.context import current_run
from tfcluster.programs.expression import Expression, parse, syntax_error

if TYPE_CHECKING:
    import click
    from rich.console import RenderableType

_EXPRESSION = "x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2"
# Up to this magnitude a float64 represents every integer exactly.
_EXACT = 2.0**53


def run(expression: str, overrides: Mapping[str, float], placed: Mapping[str, str], strict: bool) -> None:
    """Compute an expression; `overrides` replaces values of names, `placed` has devices of names.

    The other two are as in `compute`, as is the result.
    """
    tfcluster.result(compute(parse(expression, overrides), placed, strict=strict))


def compute(program: Expression, placed: Mapping[str, str], *, strict: bool) -> dict[str, Any]:
    """Compute an expression in float64; a value that is infinite or NaN is an error.

    If `strict`, a device that does not exist is an error. Otherwise the name is placed on the CPU of its task. `placed`
    is as in `choose_devices`.

    Returns:
        value (the result), name (the name that has this value), and operations (the value of each name and the device
        on which it ran).
    """
    from tfcluster.programs.placements import run_placed
    from tfcluster.programs.sessions import WholeSession

    context = current_run()
    devices = choose_devices(program, placed, context.devices, context.addresses)
    graph, tensors = _build(program, devices)
    with WholeSession(graph, list(devices.values()), as_written=True) as session:
        existing = session.list_devices()
        missing = {name: device for name, device in devices.items() if not _exists(device, existing)}
        if strict and missing:
            raise _missing_devices_error(missing, existing)
        found, ran_on = run_placed(graph, session.run, tensors)
        values = [float(value) for value in found]
    _check_finite(program, values)
    for device, count in Counter(ran_on.values()).items():
        context.device_stats[device] = {"ops": count}
    operations = {
        name: {"value": _plain(values[at]), "device": ran_on[tensors[at].op.name]} for name, at in program.names.items()
    }
    for name, device in missing.items():
        actual = operations[name]["device"]
        tfcluster.note(
            f"{name} asked for {without_replica(device)}, which the cluster does not have: placed on {actual}"
        )
    return {"value": operations[program.result]["value"], "name": program.result, "operations": operations}


def choose_devices(
    program: Expression, placed: Mapping[str, str], available: Sequence[str], addresses: Mapping[str, Sequence[str]]
) -> dict[str, str]:
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
        default = available[number % len(available)]
        devices[name] = _complete(name, placed[name], default, addresses) if name in placed else default
    return devices


def _complete(name: str, requested: str, default: str, addresses: Mapping[str, Sequence[str]]) -> str:
    """Return a device string with job, replica and task, by default those of `default`."""
    import tensorflow as tf

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


def _build(program: Expression, devices: Mapping[str, str]) -> tuple[Any, list[Any]]:
    """Build the graph of an expression; return it with the tensor of each operation, in their order."""
    import tensorflow as tf

    from tfcluster.programs.sessions import run_graph

    makers = {
        "copy": tf.identity,
        "negative": tf.negative,
        "+": tf.add,
        "-": tf.subtract,
        "*": tf.multiply,
        "/": tf.divide,
        "**": tf.pow,
    }
    named = {at: name for name, at in program.names.items()}
    tensors: list[Any] = []
    with run_graph() as graph:
        for at, operation in enumerate(program.operations):
            operands = [tensors[operand] for operand in operation.operands]
            # The intermediate steps of a name are placed on its device, and named in its scope.
            label = named.get(at, f"{operation.name}/step")
            with tf.device(devices[operation.name]):
                if operation.operator == "number":
                    # TensorFlow copies a constant to every device that uses it; an identity stays where it is placed.
                    tensors.append(tf.identity(tf.constant(operation.number, tf.float64), name=label))
                else:
                    tensors.append(makers[operation.operator](*operands, name=label))
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


def command() -> click.Command:
    """Return the command with the options of the program, whose values are the parameters of `run`."""
    import click

    from tfcluster.cli.options import FiniteFloat, strict_option

    @click.command(
        short_help="A graph of constants, split over the tasks.",
        epilog="Example: tfcluster run graph 'x = 5; (x - 8) * (x + 1)' --x 7 --device x=/job:ps/task:0",
    )
    @click.argument("expression", default=_EXPRESSION, callback=_check_expression)
    @click.option(
        "--x",
        "overrides",
        type=FiniteFloat(),
        envvar="TFCLUSTER_RUN_X",
        is_eager=True,  # the expression is checked with it
        callback=lambda context, option, x: {} if x is None else {"x": x},
        metavar="NUMBER",
        help="The value of x, instead of the one in the expression.",
    )
    @click.option(
        "--device",
        "placed",
        envvar="TFCLUSTER_RUN_DEVICE",
        multiple=True,
        metavar="NAME=DEVICE",
        callback=_split_devices,
        help="Where the operation NAME runs, such as y2=/job:worker/task:1; can be given several times.",
    )
    @strict_option
    def main(expression: str, overrides: dict[str, float], placed: dict[str, str], strict: bool) -> None:
        """Evaluate EXPRESSION, each of its names on its own device, and show where it ran.

        EXPRESSION is statements name = value, separated by semicolons; the last one needs no name. Values are
        made of numbers, names, + - * / ** and parentheses. Default:
        'x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2'.

        The names are assigned to the devices in turn; --device moves one of them.
        """
        run(expression, overrides, placed, strict)

    return main


def _split_devices(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    import click

    devices = {}
    for value in values:
        name, sign, device = value.partition("=")
        if not (name and sign and device):
            raise click.BadParameter(f"{value!r} is not NAME=DEVICE, as in y2=/job:worker/task:1", context, option)
        devices[name] = device
    return devices


def _check_expression(context: click.Context, argument: click.Parameter, expression: str) -> str:
    if not context.resilient_parsing:
        parse(expression, context.params["overrides"])  # report a syntax error at once, without a cluster
    return expression


def summary(result: dict[str, Any], seconds: float) -> list[RenderableType]:
    """Format the result: the value, and a table of the device on which each name's operation ran."""
    from tfcluster.ui.console import Text, make_table
    from tfcluster.ui.format import format_duration

    rows = [(name, str(each["value"]), each["device"]) for name, each in result["operations"].items()]
    return [
        Text.assemble((f"{result['name']} = ", "bold"), (str(result["value"]), "bold green")),
        Text(f"{format_duration(seconds)}, in float64"),
        Text(),
        make_table(("OPERATION", "VALUE", "RAN ON"), rows, right=("VALUE",)),
    ]


if __name__ == "__main__":
    command()()
