"""Collect the metrics of a cluster from its agents."""

from __future__ import annotations

from tfcluster.client.cluster import Cluster
from tfcluster.client.status import NoStatusError
from tfcluster.client.usage import take_snapshot_with_usage
from tfcluster.core.metrics import render_metrics
from tfcluster.core.states import ClusterState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.errors import ClusterError, ExitCode


def collect_metrics(cluster: Cluster, timeout: float | None = None) -> tuple[str, ClusterError | None]:
    """Collect the metrics of a cluster, on all its hosts.

    Args:
        cluster: The cluster.
        timeout: The seconds to wait for a host that does not answer; None for the default.

    Returns:
        OpenMetrics text, and the error if the cluster is not running, or none of its hosts can be reached; then the
        text says no more than that.
    """
    names = tuple(cluster.hosts)
    try:
        snapshot, usages = take_snapshot_with_usage(cluster, timeout)
    except NoStatusError as error:
        return _without_status(cluster.name, ClusterState.DEGRADED, names, "unreachable"), error
    except ClusterError as error:
        if error.exit_code is not ExitCode.NOT_RUNNING:
            raise
        return _without_status(cluster.name, ClusterState.STOPPED, names, "down"), error

    return render_metrics(snapshot.status, usages), None


def _without_status(name: str, state: ClusterState, hosts: tuple[str, ...], host_state: str) -> str:
    statuses = tuple(HostStatus(host, host_state, None, None) for host in hosts)
    return render_metrics(ClusterStatus(name, state, "", statuses, (), ()), {})
