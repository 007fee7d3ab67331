"""The command `tfcluster cancel`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, output_option
from tfcluster.cli.output import echo, echo_json


@click.command("cancel", short_help="Stop runs.", epilog="Example: tfcluster cancel pi-3f9a")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_option
@output_option
def command(runs: tuple[str, ...], cluster: str | None, output: str) -> None:
    """Stop each RUN, given by its id or enough of its beginning; one that has ended is left as it is."""
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs import cancel_run

    chosen = resolve_cluster(cluster)
    for run in runs:
        cancelled = cancel_run(chosen, run)
        if output == "json":
            echo_json(cancelled)
        else:
            echo(cancelled["run"])
