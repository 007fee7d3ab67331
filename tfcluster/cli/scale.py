"""The command `tfcluster scale`."""

from __future__ import annotations

import importlib
import re
import threading
import time
from functools import partial

import click

from tfcluster.cli.completion import complete_counts
from tfcluster.cli.options import cluster_option
from tfcluster.cli.up import ChangeOptions, change_cluster, changing_options
from tfcluster.errors import usage_error

_COUNT = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=([0-9]{1,9})")


@click.command("scale", epilog="Example: tfcluster scale worker=4 --dry-run")
@click.argument("counts", metavar="JOB=N...", nargs=-1, required=True, shell_complete=complete_counts)
@cluster_option
@changing_options
def command(
    counts: tuple[str, ...], cluster: str | None, dry_run: bool, yes: bool, timeout: float, output: str
) -> None:
    """Change the number of tasks of jobs while the cluster runs; N is the new number, and 0 removes the job.

    Added tasks are like the last task of their job; the last tasks are removed. Up to `max:` of the spec nothing is
    restarted; beyond it, running servers must learn the addresses of new ones, and a ps that is restarted loses its
    variables: in that case this asks for confirmation, or requires --yes. The file of the spec does not change, so
    `up` returns to the numbers in it.
    """
    began = time.monotonic()
    from tfcluster.client import up
    from tfcluster.client.resolve import resolve_cluster

    desired = _parse(counts)
    threading.Thread(target=importlib.import_module, args=["tfcluster.ui.progress_views"], daemon=True).start()
    target = resolve_cluster(cluster)

    make_plan = partial(up.plan_scale, target, desired)
    change_cluster(target.name, make_plan, ChangeOptions(dry_run, yes, timeout, output), began)


def _parse(counts: tuple[str, ...]) -> dict[str, int]:
    desired: dict[str, int] = {}
    for text in counts:
        match = _COUNT.fullmatch(text)
        if match is None:
            raise usage_error(f"expected JOB=N, got {text!r}", "For example, `tfcluster scale worker=4`.")
        if desired.setdefault(match[1], int(match[2])) != int(match[2]):
            raise usage_error(
                f"job {match[1]!r} has two numbers of tasks, {desired[match[1]]} and {match[2]}", "Name each job once."
            )
    return desired
