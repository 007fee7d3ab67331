"""The common part of `up` and `scale`: show a plan, ask for confirmation before data is lost, and apply the plan."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from tfcluster.cli.options import Command, output_option, seconds
from tfcluster.cli.output import confirm, echo, echo_json
from tfcluster.errors import ClusterError, ExitCode

if TYPE_CHECKING:
    from tfcluster.client.up import UpPlan
    from tfcluster.ui.status_line import StatusLine


def changing_options(function: Command) -> Command:
    """Add the options of a command that changes a cluster."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--dry-run", is_flag=True, help="Print what would be done, where, why, and what is lost; change nothing."
        ),
        click.option("--yes", is_flag=True, help="Do not ask, also where variables or runs are lost."),
        click.option(
            "--timeout",
            type=seconds(0.1),
            default=60.0,
            show_default=True,
            metavar="S",
            help="Seconds to wait until every task is ready.",
        ),
        output_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@contextlib.contextmanager
def examining(cluster: str, output: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a preflight of several hosts on a status line.

    Args:
        cluster: The cluster's name.
        output: `text`, or `json` to show nothing.

    Yields:
        A function to call with the number of hosts examined so far and the number of all hosts.
    """
    view: StatusLine | None = None

    def show(done: int, count: int) -> None:
        nonlocal view
        if view is None:
            from tfcluster.ui.status_line import StatusLine

            view = StatusLine(silent=output == "json")
        view.say(f"{cluster}: examined {done} of {count} hosts")

    try:
        yield show
    finally:
        if view is not None:
            view.end()


def carry_out(prepared: UpPlan, *, dry_run: bool, yes: bool, timeout: float, output: str, began: float) -> None:
    """Show a plan, ask for confirmation if data is lost, apply the plan, and wait until every task is ready.

    Args:
        prepared: The plan.
        dry_run: Only show the plan.
        yes: Do not ask for confirmation.
        timeout: The maximum number of seconds to wait.
        output: `text` or `json`.
        began: The time at which the command began, in monotonic seconds.

    Raises:
        ClusterError: The user did not confirm the data loss, or the plan failed.
    """
    from tfcluster.client.apply import apply
    from tfcluster.client.wait import watch_until_ready
    from tfcluster.ui.up import UpView

    cluster, operations = prepared.topology.cluster, prepared.operations
    view = UpView(cluster, silent=output == "json")
    if dry_run and output == "json":
        echo_json(prepared.to_json())
    elif dry_run or (prepared.base is not None and operations and output == "text"):
        view.show_plan(operations)
    if dry_run:
        return
    if not yes:
        _confirm_losses(prepared, may_ask=output == "text" and sys.stdin.isatty() and sys.stdout.isatty())
    status = None
    try:
        with view:
            for status in apply(prepared, whatever_is_lost=yes):
                view.stopping(status, operations)
            for status in watch_until_ready(prepared.cluster, prepared.topology, timeout):
                view.update(status)
    except KeyboardInterrupt:
        echo(
            f"{cluster} may be changed in part, or go on changing: `tfcluster status` shows it, the same command again "
            "goes on, `tfcluster down` stops it",
            err=True,
        )
        raise
    assert status is not None, "there is at least one status"
    if output == "json":
        echo_json(status.to_json())
    else:
        view.finish(status, operations, time.monotonic() - began)


def _confirm_losses(prepared: UpPlan, *, may_ask: bool) -> None:
    from tfcluster.core.plan import PEER_UNKNOWN, data_losses

    lost = data_losses(prepared.operations)
    if not lost:
        return
    if may_ask:
        if not confirm("Go on, and lose that?"):
            raise ClusterError("nothing was changed")
        return
    hint = "`--yes` does it all the same, `--dry-run` shows the whole plan."
    if any(PEER_UNKNOWN in operation.cause for operation in prepared.operations):
        hint += " A job that comes up with `max: N` in the spec grows to N tasks without restarting any."
    raise ClusterError(
        "\n".join(
            [
                f"cluster {prepared.topology.cluster!r} would lose {', '.join(lost)}: nothing was changed",
                *(str(operation) for operation in prepared.operations if operation.lost),
            ]
        ),
        hint=hint,
        exit_code=ExitCode.USAGE,
    )
