"""Ask the agents what their hosts and tasks use, besides the status, and make metrics of both."""

from __future__ import annotations

from dataclasses import replace

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import map_hosts, partition
from tfcluster.client.status import ClusterSnapshot, NoStatusError, take_snapshot
from tfcluster.core.metrics import render_metrics
from tfcluster.core.states import ClusterState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.core.usage import HostUsage, with_usage
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import UsageRequest


def take_snapshot_with_usage(
    cluster: Cluster, timeout: float | None = None
) -> tuple[ClusterSnapshot, dict[str, HostUsage]]:
    """Take a snapshot of a cluster, with the load of its hosts and the traffic of its tasks, by host.

    See `take_snapshot` for the timeout and for errors. A host that has reported no usage is left out of it.
    """
    snapshot = take_snapshot(cluster, timeout)

    def query(host: str) -> HostUsage:
        return cluster.connect(host).call(UsageRequest(), timeout=timeout)

    limit = settings.HOST_TIMEOUT_SECONDS if timeout is None else timeout
    usages, _ = partition(map_hosts(snapshot.statuses, query, limit))
    return replace(snapshot, status=with_usage(snapshot.status, usages)), usages


def collect_metrics(cluster: Cluster, timeout: float | None = None) -> tuple[str, ClusterError | None]:
    """Collect the metrics of a cluster, on all its hosts.

    Return OpenMetrics text, and the error if the cluster is not running, or none of its hosts can be reached; then the
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
