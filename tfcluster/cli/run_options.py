"""The options that every run has, and what a program's own options ask for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import click

from tfcluster.cli.options import (
    OutputFilePath,
    seed_option,
    strict_option,
    submission_options,
)
from tfcluster.records import record_class

_AFTER_SUCCESS = "tfcluster.after_success"


@record_class(frozen=True)
class SharedOptions:
    """The values of the options that every run has."""

    seed: int | None
    devices: tuple[str, ...]
    gpus: int | None
    strict: bool
    timeout: float | None
    log_placement: bool
    placement_graph: Path | None
    detach: bool
    cluster: str | None
    output: str
    name: str | None = None
    notify: str | None = None


@record_class(frozen=True)
class Submission:
    """The program's part of what the user's options ask for.

    Attributes:
        parameters: The arguments of the program's function, as JSON values.
        upload: An open file to upload with the run, which may be standard input; None for none.
        upload_name: The name of the file in the run's folder.
        on_success: Called with the result event of a run that succeeded, after the result is shown.
        approve_code: Called with a description of the code that is to be sent to another host, if there is much of it;
            what it raises ends the command. For scripts only.
        start_timeout: Seconds after which the run is stopped if it waits for its tasks; None for no limit. For scripts
            only.
    """

    parameters: dict[str, Any]
    upload: BinaryIO | None = None
    upload_name: str = "upload"
    on_success: Callable[[dict[str, Any]], None] | None = None
    approve_code: Callable[[str], None] = lambda description: None
    start_timeout: float | None = None


def after_success(option: str, what: str, call: Callable[[dict[str, Any]], None]) -> None:
    """Have the command call a function with the result event of its run, if it succeeds; for callbacks of options.

    `what` says what the function does, in the error of an `option` that is combined with --detach.
    """
    click.get_current_context().meta[_AFTER_SUCCESS] = (option, what, call)


def submission_of(command: click.Command, values: dict[str, Any], *, detach: bool) -> Submission:
    """Return the submission of a bundled program, given its command and the values of its parameters.

    An open file among them is uploaded, and its parameter is its name.
    """
    upload, parameters = None, {}
    for param in command.params:
        if param.name in values:
            value = values[param.name]
            if hasattr(value, "read"):
                upload, value = value, "-" if value is sys.stdin.buffer else value.name
            parameters[param.name] = value
    option, what, on_success = click.get_current_context().meta.get(_AFTER_SUCCESS, ("", "", None))
    if detach and on_success is not None:
        raise click.UsageError(f"{option} cannot be combined with --detach: this command {what}.")
    return Submission(parameters, upload=upload, on_success=on_success)


@click.command()
@seed_option
@click.option(
    "--devices",
    multiple=True,
    metavar="PATTERN",
    help="Devices to compute on, such as '/job:worker/task:*/device:CPU:0'; can be given several times.",
)
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="How many GPU devices to use.")
@strict_option
@click.option(
    "--log-placement", is_flag=True, help="Show the operations of the first step on each device, with their devices."
)
@click.option(
    "--placement-graph",
    type=OutputFilePath((".svg", ".dot")),
    metavar="FILE",
    help="Draw the placed graph in FILE, a colour for each device: .dot, or .svg (requires Graphviz).",
)
@submission_options
def _shared() -> None:
    """Have the options that every program has; their names are the fields of SharedOptions."""


#: The options that every run has, in the order of the help.
SHARED: list[click.Parameter] = _shared.params
