"""Ask the agents what their hosts and tasks use, besides the status."""

from __future__ import annotations

from dataclasses import replace

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import map_hosts, partition
from tfcluster.client.status import ClusterSnapshot, take_snapshot
from tfcluster.core.usage import HostUsage, with_usage
from tfcluster.protocol.api.cluster import UsageRequest


def take_snapshot_with_usage(
    cluster: Cluster, timeout: float | None = None
) -> tuple[ClusterSnapshot, dict[str, HostUsage]]:
    """Take a snapshot of a cluster, with the load of its hosts and the traffic of its tasks.

    Args:
        cluster: The cluster.
        timeout: The seconds to wait for a host that does not answer; None for the default.

    Returns:
        The snapshot, and the usage of each host that has reported it, by host.

    Raises:
        ClusterError: As for `take_snapshot`.
    """
    snapshot = take_snapshot(cluster, timeout)

    def query(host: str) -> HostUsage:
        return cluster.connect(host).call(UsageRequest(), timeout=timeout)

    limit = settings.HOST_TIMEOUT_SECONDS if timeout is None else timeout
    usages, _ = partition(map_hosts(snapshot.statuses, query, limit))
    return replace(snapshot, status=with_usage(snapshot.status, usages)), usages
