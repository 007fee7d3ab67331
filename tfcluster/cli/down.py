"""The command `tfcluster down`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, grace_option, output_option
from tfcluster.cli.output import echo_json


@click.command("down", short_help="Stop a cluster.", epilog="Example: tfcluster down --grace 2")
@cluster_option
@click.option(
    "--all",
    "all_clusters",
    is_flag=True,
    envvar="TFCLUSTER_DOWN_ALL",
    help="Stop every cluster of this user on this machine.",
)
@grace_option
@output_option
def command(cluster: str | None, all_clusters: bool, grace: float, output: str) -> None:
    """Stop everything that `up` started, the ps last; the logs and the runs' records stay.

    On several hosts the runs end first, then those hosts are stopped that have no ps, then those that have one. Where
    a host cannot be reached the others are stopped all the same: this exits with 5 then, and the next `down` goes on.
    Exits with 3 when the cluster is not running.
    """
    from tfcluster.client import down
    from tfcluster.errors import ClusterError
    from tfcluster.ui.progress_views import DownView

    failed: list[ClusterError] = []
    for each in down.clusters_to_stop(cluster, all_clusters):
        view = DownView(each.name, silent=output == "json")
        try:
            with view:
                for status in down.take_down(each, grace):
                    view.update(status)
        except ClusterError as error:  # continue with the other clusters
            failed.append(error)
            continue
        if output == "json":
            echo_json({"cluster": each.name, "state": "stopped"})
        else:
            view.finish()
    if failed:
        hints = " ".join(dict.fromkeys(error.hint for error in failed))
        raise ClusterError(
            "\n".join(error.message for error in failed), hint=hints, exit_code=max(error.exit_code for error in failed)
        )
