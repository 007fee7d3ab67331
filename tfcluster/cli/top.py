"""The command `tfcluster top`."""

from __future__ import annotations

import os
import sys

import click

from tfcluster.cli.options import cluster_option, resolve_target
from tfcluster.errors import usage_error


@click.command("top", epilog="Example: tfcluster top -c demo")
@cluster_option
def command(cluster: str | None) -> int:
    """Watch a cluster, full screen: hosts, tasks, runs with their progress, and the last events.

    Everything is shown as it changes. Arrows and Enter lead to the details and the log of a task or run, r restarts a
    task, c cancels a run, ? shows all keys, q quits. It asks before work is lost.

    It requires a terminal. Exits with 3 when the cluster is not running or goes down, 5 when its hosts cannot be
    reached.
    """
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on standard error
    if not all(stream.isatty() for stream in streams) or os.environ.get("TERM", "dumb") == "dumb":
        raise usage_error(
            "`tfcluster top` requires a terminal",
            "`tfcluster status` prints the same once, and `tfcluster status -o json` for programs.",
        )
    from tfcluster.client.status import take_snapshot

    target = resolve_target(cluster)
    snapshot = take_snapshot(target)
    from tfcluster.ui.top.app import run_top  # not before it is needed: Textual is slow to import

    return run_top(target, snapshot)
