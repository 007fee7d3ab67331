"""Reading what a cluster's tasks printed and what happened to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tfcluster.client.connection import Connection, not_running
from tfcluster.places import state_folder
from tfcluster.protocol.messages import Call


def read_logs(cluster: str, tasks: Sequence[str], lines: int | None, follow: bool) -> Iterator[dict[str, Any]]:
    """Lines of the tasks' logs, each as {task, line}.

    Args:
        cluster: Its name; it may be down, then its last logs are read.
        tasks: Tasks or jobs; all when empty.
        lines: Only the last so many of each; None for all.
        follow: Go on until interrupted or the cluster goes down.

    Raises:
        ClusterError: The cluster never ran here, or a task is unknown.
    """
    if not state_folder(cluster).exists():
        raise not_running(cluster)
    # Also for a cluster that is down it is an agent that reads the logs of its host.
    return Connection(cluster).stream(Call.LOGS, start=True, tasks=list(tasks), lines=lines, follow=follow)


def read_events(cluster: str, lines: int | None, follow: bool) -> Iterator[dict[str, Any]]:
    """What happened to a cluster, each as {time, event, task, detail}.

    Args:
        cluster: Its name; it may be down.
        lines: Only the last so many; None for all.
        follow: Go on until interrupted or the cluster goes down.

    Raises:
        ClusterError: The cluster never ran here.
    """
    if not state_folder(cluster).exists():
        raise not_running(cluster)
    return Connection(cluster).stream(Call.EVENTS, start=True, lines=lines, follow=follow)
