"""`tfcluster down`."""

from __future__ import annotations

import json

import click

from tfcluster.cli.options import cluster_option, output_option, seconds


@click.command("down", short_help="Stop a cluster.", epilog="Example: tfcluster down --grace 2")
@cluster_option
@click.option("--all", "everything", is_flag=True, help="Stop every cluster of this user on this machine.")
@click.option(
    "--grace",
    type=seconds(0.0),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds between asking a task to end (TERM) and ending it (KILL).",
)
@output_option
def command(cluster: str | None, everything: bool, grace: float, output: str) -> None:
    """Stop everything that `up` started, the ps last; the logs and the runs' records stay.

    Exits with 3 when the cluster is not running.
    """
    from tfcluster.client import down
    from tfcluster.render.down import DownView

    for name in down.clusters_to_stop(cluster, everything):
        view = DownView(name, silent=output == "json")
        with view:
            for status in down.take_down(name, grace):
                view.update(status)
        if output == "json":
            click.echo(json.dumps({"cluster": name, "state": "stopped"}))
        else:
            view.finish()
