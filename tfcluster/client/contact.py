"""Being in contact with every host while a run is followed, or a lease would end in mid run where nobody else asks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tfcluster.client.cluster import Cluster
from tfcluster.client.fan_out import on_all
from tfcluster.errors import ClusterError
from tfcluster.protocol.framing import Message
from tfcluster.protocol.messages import Call

# Seconds until the lease is asked for, which most runs do not take, and asked for again where that fails.
_PAUSE = 1.0
# So often within its lease a host is asked.
_TIMES = 3
_ANSWER_SECONDS = 5.0


@contextlib.contextmanager
def in_contact(cluster: Cluster) -> Iterator[None]:
    """Have no host of a cluster count as forgotten meanwhile; the head's knows that its run is followed."""
    over = threading.Event()
    if not cluster.is_here:
        threading.Thread(target=_keep, args=(cluster, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _keep(cluster: Cluster, over: threading.Event) -> None:
    layout: Message | None = None
    while layout is None:
        if over.wait(_PAUSE):
            return
        with contextlib.suppress(ClusterError):
            layout = cluster.leader().call(Call.LAYOUT, settled=False)
    lease = layout["lease"]
    others = [host for host in cluster.hosts if host != cluster.head]
    while lease is not None and not over.wait(lease / _TIMES):
        on_all(others, lambda host: cluster.connect(host).call(Call.STATUS), _ANSWER_SECONDS)
