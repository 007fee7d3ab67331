"""The command `tfcluster scale`."""

from __future__ import annotations

import importlib
import re
import threading
import time

import click

from tfcluster.cli.apply_flow import carry_out, changing_options, examining
from tfcluster.cli.options import cluster_option
from tfcluster.errors import ClusterError, ExitCode

_COUNT = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=([0-9]{1,9})")


@click.command(
    "scale",
    short_help="Change how many tasks the jobs of a cluster have.",
    epilog="Example: tfcluster scale worker=4 --dry-run",
)
@click.argument("counts", metavar="JOB=N...", nargs=-1, required=True)
@cluster_option
@changing_options
def command(
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
    threading.Thread(target=importlib.import_module, args=["tfcluster.ui.up"], daemon=True).start()
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
