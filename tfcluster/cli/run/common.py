"""The common part of the `tfcluster run` commands: their options, submitting a run, and showing its events."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from tfcluster.cli.options import Command, PictureFile, WholeNumber, cluster_option, output_option, seconds
from tfcluster.cli.output import echo, echo_json

# The environment variable of an option is TFCLUSTER_RUN_OPTION for every program, without the program's name.
CONTEXT = {"auto_envvar_prefix": "TFCLUSTER_RUN"}


def shared_options(function: Command) -> Command:
    """Add the options that every program has."""
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
        click.option("--log-placement", is_flag=True, help="Show each operation with the device it is placed on."),
        click.option(
            "--placement-graph",
            type=PictureFile((".svg", ".dot")),
            metavar="FILE",
            help="Draw the placed graph in FILE (.svg, or .dot for Graphviz), a colour for each device.",
        ),
        click.option("--timeout", type=seconds(0.1), metavar="S", help="Seconds after which the run is stopped."),
        click.option("--detach", is_flag=True, help="Print the run's id and leave it alone; see `tfcluster attach`."),
        cluster_option,
        output_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


def seed_or_new(seed: int | None) -> int:
    """Return the seed that the user gave, or a random one."""
    return secrets.randbits(32) if seed is None else seed


@dataclass(frozen=True)
class SharedOptions:
    """The values of the `shared_options`, except the seed, which is one of the program's own parameters.

    Raises:
        click.UsageError: Two of the options exclude each other.
    """

    devices: tuple[str, ...]
    gpus: int | None
    strict: bool
    timeout: float | None
    log_placement: bool
    placement_graph: Path | None
    detach: bool
    cluster: str | None
    output: str

    def __post_init__(self) -> None:
        if self.detach and self.placement_graph is not None:
            raise click.UsageError("--placement-graph draws what the run tells; leave out --detach.")


def submit(
    program: str,
    parameters: dict[str, Any],
    *,
    sent: BinaryIO | None = None,
    sent_as: str = "sent",
    then: Callable[[dict[str, Any]], None] | None = None,
    **shared: Any,
) -> int:
    """Submit a run and show its events, or its id if it is detached.

    Args:
        program: The program.
        parameters: The program's own parameters.
        sent: An open file to upload with the run, which may be standard input; None for none.
        sent_as: The name of the file in the run's folder.
        then: Called with the result event of a run that succeeded, after it is shown.
        **shared: The fields of SharedOptions.

    Returns:
        The exit code for the run's result.
    """
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs import RunRequest

    options = SharedOptions(**shared)
    submission = RunRequest(
        program,
        parameters,
        list(options.devices),
        options.gpus,
        options.strict,
        options.timeout,
        log_placement=options.log_placement or options.placement_graph is not None,
        detach=options.detach,
        sent=sent,
        sent_as=sent_as,
    )
    return show(
        submission.events(resolve_cluster(options.cluster)),
        options.output,
        then,
        detached=options.detach,
        log_placement=options.log_placement,
        picture=options.placement_graph,
        raw=True,
    )


def show(
    events: Generator[dict[str, Any], None, None],
    output: str,
    then: Callable[[dict[str, Any]], None] | None = None,
    *,
    detached: bool = False,
    log_placement: bool = False,
    picture: Path | None = None,
    raw: bool = False,
) -> int:
    """Show the events of a run as they arrive.

    Args:
        events: The events.
        output: The value of `--output`.
        then: Called with the result event of a run that succeeded, after it is shown.
        detached: Whether the run is detached, so that there may be no result; then its id is shown.
        log_placement: Show the placement events too.
        picture: The file to which the placed graph is exported; None for none.
        raw: Print a script's output unchanged, including its control characters.

    Returns:
        The exit code for the run's result.

    Raises:
        ClusterError: There is no result, and the run was not detached.
    """
    from tfcluster.client.runs import exit_code
    from tfcluster.errors import ClusterError, ExitCode
    from tfcluster.ui.run_view import RunView

    drawing = None
    if picture is not None:
        from tfcluster.ui.graph_export import GraphPicture

        drawing = GraphPicture(picture)

    view = RunView(silent=output == "json", placements=log_placement, raw=raw)
    # Closing the events cancels the run if an interrupt arrives while one of them is being shown.
    with contextlib.closing(events), view:
        run, result = _show_events(events, output, [view.update] if drawing is None else [view.update, drawing.update])
    if not result:
        if not detached:
            raise ClusterError(f"of {run or 'the run'} no result is left", hint="`tfcluster runs` lists the runs.")
        if output == "text":
            echo(run)
        return int(ExitCode.DONE)
    if output == "text":
        view.finish(result)
    if drawing is not None:
        drawing.write()
    if then is not None and result["state"] == "succeeded":
        then(result)
    return int(exit_code(result))


def _show_events(
    events: Generator[dict[str, Any], None, None],
    output: str,
    views: Sequence[Callable[[dict[str, Any]], None]],
) -> tuple[str, dict[str, Any]]:
    """Pass the events to the views as they arrive.

    Returns:
        The run's id and its result event, each empty if there was none.
    """
    run = ""
    result: dict[str, Any] = {}
    for event in events:
        if output == "json":
            echo_json(event)
        for update in views:
            update(event)
        run = event.get("run", run)
        if event["event"] == "result":
            result = event
    return run, result
