"""Keep the hosts' leases alive while a command follows a run, so that no lease expires in the middle of the run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import StatusRequest, TopologyRequest


@contextlib.contextmanager
def keep_leases_alive(cluster: Cluster) -> Iterator[None]:
    """Renew the lease of every host of a cluster while the context is open.

    The head's host needs no renewal: its agent knows that a command follows the run.
    """
    over = threading.Event()
    if not cluster.is_here:
        threading.Thread(target=_keep, args=(cluster, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _keep(cluster: Cluster, over: threading.Event) -> None:
    topology: ClusterTopology | None = None
    while topology is None:
        if over.wait(settings.LEASE_START_SECONDS):
            return
        with contextlib.suppress(ClusterError):
            topology = cluster.leader().call(TopologyRequest(settled=False))
    lease = topology.lease
    others = [host for host in cluster.hosts if host != cluster.head]
    while lease is not None and not over.wait(lease / settings.LEASE_RENEWALS):
        map_hosts(others, lambda host: cluster.connect(host).call(StatusRequest()), settings.LEASE_TIMEOUT_SECONDS)
