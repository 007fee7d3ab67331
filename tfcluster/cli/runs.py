"""The command `tfcluster runs`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, output_option
from tfcluster.cli.output import echo_json


@click.command("runs", short_help="List the cluster's runs.", epilog="Example: tfcluster runs -n 5")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N runs.")
@cluster_option
@output_option
def command(lines: int | None, cluster: str | None, output: str) -> None:
    """List the cluster's runs, the oldest first: what ran, with which inputs, how it ended and what it found.

    The last hundred that ended are kept, also after `down`.
    """
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs import list_runs

    found = list_runs(resolve_cluster(cluster), lines)
    if output == "json":
        echo_json(found)
    else:
        from tfcluster.ui.runs import show_runs

        show_runs(found)
