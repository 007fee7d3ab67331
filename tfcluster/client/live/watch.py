"""The status of a cluster again and again, for `status --watch`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.live.view import LiveView
from tfcluster.client.status import ClusterSnapshot, NoStatusError, take_snapshot


def follow_view(cluster: Cluster, snapshot: ClusterSnapshot, timeout: float | None) -> Iterator[LiveView]:
    """Yield the view of a cluster now, after each change, and each second.

    Raises ClusterError when the cluster goes down, or its job has ended.
    """
    live = LiveCluster(cluster, snapshot, timeout)
    live.start()
    with contextlib.closing(live):
        live.wait_until_asked(settings.LIVE_POLL_SECONDS)  # what the hosts use is not in the snapshot
        version, looked_at = live.version, time.monotonic()
        while True:
            view = live.view()
            if view.down is not None:
                raise view.down
            yield view
            is_lost = all(link.lost_at is not None for link in view.links.values())
            if is_lost and time.monotonic() - looked_at >= settings.LIVE_RETRY_SECONDS:
                with contextlib.suppress(NoStatusError):  # else the hosts are gone for good
                    take_snapshot(live.cluster, timeout, announces_lost=False)
                looked_at = time.monotonic()
            version = live.wait(version, settings.LIVE_POLL_SECONDS)


def changed_views(views: Iterable[LiveView]) -> Iterator[LiveView]:
    """Yield the first view, and those in which a state, a process or the reason of a lost host is another one."""
    known = None
    for view in views:
        status = view.status
        states = (
            status.state,
            [(host.host, host.state, host.agent_pid) for host in status.hosts],
            [(task.task, task.host, task.state, task.pid, task.restarts) for task in status.tasks],
            [(run.run, run.state, [(member.pid, member.exit_code) for member in run.members]) for run in status.runs],
            view.links,
        )
        if states != known:
            known = states
            yield view


def describe_losses(view: LiveView) -> list[str]:
    """Return a line for each host whose agent does not answer: since when, and why."""
    lines = []
    for host, link in view.links.items():
        if link.lost_at is not None:
            since = time.strftime("%H:%M:%S", time.localtime(link.lost_at))
            lines.append(f"{host} does not answer since {since}: {link.reason.partition(chr(10))[0]}")
    return lines
