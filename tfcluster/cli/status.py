"""The command `tfcluster status`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, output_option
from tfcluster.cli.output import echo_json


@click.command("status", short_help="Show what runs where.", epilog="Example: tfcluster status -o json | jq .state")
@cluster_option
@output_option
def command(cluster: str | None, output: str) -> int:
    """Show every task of a cluster: where it runs, how it is, what it uses.

    A host that has not answered within 5 s is shown as unreachable, and its tasks as unresponsive.

    Exits with 0 when every task is ready, 4 when one is not, 5 when a host cannot be reached, 3 when the cluster is
    not running.
    """
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.errors import ExitCode
    from tfcluster.protocol.api import Method

    chosen = resolve_cluster(cluster)
    if chosen.is_here:
        answer = chosen.leader().call(Method.STATUS)
        problem = None
    else:
        from tfcluster.client.snapshot import look, unreachable

        found = look(chosen)
        answer = found.status.to_json()
        problem = unreachable(chosen.name, found.away) if found.away else None
    if output == "json":
        echo_json(answer)
    else:
        from tfcluster.core.status import ClusterStatus
        from tfcluster.ui.status import show_status

        show_status(ClusterStatus.from_json(answer))
    if problem is not None:
        raise problem
    return int(ExitCode.DONE if answer["state"] == "running" else ExitCode.UNHEALTHY)
