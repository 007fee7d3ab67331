"""Being in contact with every host while a run is followed, or a lease would end in mid run where nobody else asks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Method
from tfcluster.protocol.codec import Message

# Seconds until the lease is asked for, which most runs do not take, and asked for again where that fails.
_PAUSE = 1.0
# So often within its lease a host is asked.
_TIMES = 3
_ANSWER_SECONDS = 5.0


@contextlib.contextmanager
def keep_leases_alive(cluster: Cluster) -> Iterator[None]:
    """Have no host of a cluster count as forgotten meanwhile; the head's knows that its run is followed."""
    over = threading.Event()
    if not cluster.is_here:
        threading.Thread(target=_keep, args=(cluster, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _keep(cluster: Cluster, over: threading.Event) -> None:
    topology: Message | None = None
    while topology is None:
        if over.wait(_PAUSE):
            return
        with contextlib.suppress(ClusterError):
            topology = cluster.leader().call(Method.TOPOLOGY, settled=False)
    lease = topology["lease"]
    others = [host for host in cluster.hosts if host != cluster.head]
    while lease is not None and not over.wait(lease / _TIMES):
        map_hosts(others, lambda host: cluster.connect(host).call(Method.STATUS), _ANSWER_SECONDS)
