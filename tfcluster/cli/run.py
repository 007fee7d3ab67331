"""`tfcluster run`: a group with a command for each program."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable
from typing import Any

import click

from tfcluster.cli.options import Command, WholeNumber, cluster_option, output_option, seconds


@click.group(
    "run",
    short_help="Run a program on the cluster.",
    epilog="Example: tfcluster run pi --samples 1e7 --gpus 4",
)
def command() -> None:
    """Run PROGRAM on the cluster that is up, and show its progress and result.

    It runs beside the cluster: Ctrl-C cancels it and leaves the cluster as it was.
    """


# The options of programs are set as TFCLUSTER_RUN_OPTION, whatever the program.
_CONTEXT = {"auto_envvar_prefix": "TFCLUSTER_RUN"}


def _shared_options(function: Command) -> Command:
    """The options that every program has."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--seed",
            type=WholeNumber(0, 2**63 - 1),
            help="The same seed gives the same result; chosen and shown when left out.",
        ),
        click.option(
            "--devices",
            multiple=True,
            metavar="PATTERN",
            help="Devices to compute on, as '/job:worker/task:*/device:CPU:0'; may be given several times.",
        ),
        click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="How many GPU devices to use."),
        click.option("--strict", is_flag=True, help="Fail when there are fewer GPUs than asked for."),
        click.option("--timeout", type=seconds(0.1), metavar="S", help="Seconds after which the run is stopped."),
        cluster_option,
        output_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@command.command(
    "pi",
    context_settings=_CONTEXT,
    short_help="Pi from random points, counted on all devices.",
    epilog="Example: tfcluster run pi --samples 1e9 --seed 7 --devices '/job:worker/task:*'",
)
@click.option(
    "--samples",
    type=WholeNumber(1, 2**54),
    default="1e7",
    show_default=True,
    metavar="N",
    help="How many points to make.",
)
@_shared_options
def pi(samples: int, seed: int | None, **shared: Any) -> int:
    """Estimate pi by counting random points inside the quarter circle, on the tasks' devices.

    The count depends on the seed and the number of points alone, not on the devices that share the work.
    """
    if seed is None:
        seed = secrets.randbits(32)
    return _run("pi", {"samples": samples, "seed": seed}, **shared)


def _run(
    program: str,
    parameters: dict[str, Any],
    devices: tuple[str, ...],
    gpus: int | None,
    strict: bool,
    timeout: float | None,
    cluster: str | None,
    output: str,
) -> int:
    """Submit a run, show its events, and give the exit code of its result."""
    from tfcluster.client.choice import choose_cluster
    from tfcluster.client.run import Submission, exit_code
    from tfcluster.render.run import RunView

    submission = Submission(program, parameters, list(devices), gpus, strict, timeout)
    result: dict[str, Any] = {}
    view = RunView(silent=output == "json")
    events = submission.events(choose_cluster(cluster))
    # Closing the events is what cancels a run that is interrupted while one of them is being shown.
    with contextlib.closing(events), view:
        for event in events:
            if output == "json":
                click.echo(json.dumps(event))
            view.update(event)
            if event["event"] == "result":
                result = event
    if output == "text":
        view.finish(result)
    return int(exit_code(result))
