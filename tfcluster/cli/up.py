"""The commands `tfcluster up` and `scale`: plan, ask for confirmation before data is lost, apply, and wait."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfcluster import settings
from tfcluster.cli.options import Command, cluster_option, output_option, seconds
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
            default=settings.READY_TIMEOUT_SECONDS,
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
        view.show(f"{cluster}: examined {done} of {count} hosts")

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
    from tfcluster.ui.progress_views import UpView

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


@click.command(
    "up",
    short_help="Start a cluster from a spec and wait until it is ready.",
    epilog="Example: tfcluster up examples/cluster.yaml --timeout 30",
)
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@click.option(
    "--cluster-spec",
    metavar="NOTATION",
    help="A cluster in one line instead of a file: 'master|localhost:2222,worker|localhost:2223;localhost:2224'.",
)
@click.option("--mixed-tensorflow", is_flag=True, help="Go on where the hosts have different versions of TensorFlow.")
@changing_options
def command(
    spec: Path | None,
    cluster_spec: str | None,
    mixed_tensorflow: bool,
    dry_run: bool,
    yes: bool,
    timeout: float,
    output: str,
) -> None:
    """Start the cluster of SPEC (./cluster.yaml when left out) and wait until every task answers.

    A second `up` of the same spec changes nothing; after an edit it starts, restarts and stops only what the edit is
    about. It asks, or wants --yes, before a ps loses its variables or a run its tasks.

    All hosts are examined before anything starts, and everything that is wrong on any of them is told at once. A spec
    is code: `up` runs its `setup:` commands and its `python:` on the hosts. --dry-run runs of it only `python:`, in
    isolated mode, and changes nothing on any host.

    Exits with 4 when a task does not get ready, 5 when a host cannot be reached.
    """
    began = time.monotonic()
    from tfcluster.client import up

    if not dry_run:
        # Prestart the agent before the imports for reading the spec, so that these and the agent's run in parallel.
        up.begin()
    from tfcluster.client.resolve import load_topology

    topology = load_topology(spec, cluster_spec)
    # Importing rich takes as long as starting a server, so import it while the agent loads TensorFlow's library.
    threading.Thread(target=importlib.import_module, args=["tfcluster.ui.progress_views"], daemon=True).start()
    with examining(topology.cluster, output) as progress:
        prepared = up.prepare(topology, dry=dry_run, progress=progress, mixed=mixed_tensorflow)
    carry_out(prepared, dry_run=dry_run, yes=yes, timeout=timeout, output=output, began=began)


_COUNT = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=([0-9]{1,9})")


@click.command(
    "scale",
    short_help="Change how many tasks the jobs of a cluster have.",
    epilog="Example: tfcluster scale worker=4 --dry-run",
)
@click.argument("counts", metavar="JOB=N...", nargs=-1, required=True)
@cluster_option
@changing_options
def scale_command(
    counts: tuple[str, ...], cluster: str | None, dry_run: bool, yes: bool, timeout: float, output: str
) -> None:
    """Give jobs another number of tasks while the cluster runs; N is the number afterwards, 0 removes the job.

    Added tasks are like the last one of their job, removed ones are the last. Up to `max:` of the spec nothing is
    restarted; beyond it the servers that run must learn of the new ones, and a ps that is restarted loses its
    variables: then this asks, or wants --yes. The spec's file stays as it is: `up` goes back to what it says.
    """
    began = time.monotonic()
    from tfcluster.client import up
    from tfcluster.client.resolve import resolve_cluster

    wanted = _parse(counts)
    threading.Thread(target=importlib.import_module, args=["tfcluster.ui.progress_views"], daemon=True).start()
    chosen = resolve_cluster(cluster)
    with examining(chosen.name, output) as progress:
        prepared = up.prepare_scaled(chosen, wanted, dry=dry_run, progress=progress)
    carry_out(prepared, dry_run=dry_run, yes=yes, timeout=timeout, output=output, began=began)


def _parse(counts: tuple[str, ...]) -> dict[str, int]:
    """Parse JOB=N arguments.

    Returns:
        The number of tasks, by job.

    Raises:
        ClusterError: An argument is not of this form, or two arguments contradict each other.
    """
    found: dict[str, int] = {}
    for text in counts:
        match = _COUNT.fullmatch(text)
        if match is None:
            raise ClusterError(
                f"{text!r} is no job with a number of tasks",
                hint="Write JOB=N, for example `tfcluster scale worker=4`.",
                exit_code=ExitCode.USAGE,
            )
        if found.setdefault(match[1], int(match[2])) != int(match[2]):
            raise ClusterError(
                f"job {match[1]!r} is given two numbers of tasks, {found[match[1]]} and {match[2]}",
                hint="Name each job once.",
                exit_code=ExitCode.USAGE,
            )
    return found
