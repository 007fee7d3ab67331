"""The command `tfcluster metrics`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, host_timeout_option
from tfcluster.cli.output import echo_exactly


@click.command(
    "metrics",
    short_help="Print the metrics of a cluster for Prometheus.",
    epilog="Example: tfcluster metrics -c demo > demo.prom",
)
@cluster_option
@host_timeout_option
def command(cluster: str | None, timeout: float | None) -> None:
    """Print what `status` shows as OpenMetrics text: the state, restarts and usage of every task, hosts, agents, runs.

    A task that is not ready and a host that is away are metrics, and no failure: the command exits with 0 if any host
    answers. A cluster that is not running (exit code 3), and one whose hosts cannot be reached (5), have metrics that
    say so.
    """
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.usage import collect_metrics

    text, error = collect_metrics(resolve_cluster(cluster), timeout)
    echo_exactly(text.removesuffix("\n"))
    if error is not None:
        raise error
