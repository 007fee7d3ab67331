"""The command `tfcluster events`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, output_option, since_option
from tfcluster.cli.output import echo_json


@click.command(
    "events",
    short_help="Show what happened to the tasks, and why.",
    epilog="Example: tfcluster events -f",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N events.")
@since_option
@cluster_option
@output_option
def command(follow: bool, tail: int | None, since: float | None, cluster: str | None, output: str) -> None:
    """Show what happened to the cluster's tasks and why: started, ready, died, adopted by another agent.

    The events are kept across agents and after `down`.
    """
    from tfcluster.client.logs import read_events
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.ui.events import show_event

    for event in read_events(resolve_cluster(cluster), lines=tail, since=since, follow=follow):
        if output == "json":
            echo_json(event)
        else:
            show_event(event)
