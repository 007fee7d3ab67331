"""Reading what a cluster's tasks printed and what happened to them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from tfcluster.client.connection import AgentGoneError, Connection
from tfcluster.places import journal_path, state_folder
from tfcluster.protocol.messages import Call
from tfcluster.transport.reach import not_running

# So many agents may die one after the other, without a line from any, before something is said to be wrong.
_AGENTS = 5
_PAUSE_SECONDS = 0.1


def read_logs(
    cluster: str,
    tasks: Sequence[str] = (),
    *,
    lines: int | None = None,
    since: float | None = None,
    follow: bool = False,
    after: dict[str, int] | None = None,
) -> Iterator[dict[str, Any]]:
    """Lines of the tasks' logs, each as {task, time, line}, by their time in Unix seconds.

    Args:
        cluster: Its name; it may be down, then its last logs are read.
        tasks: Tasks or jobs; all when empty.
        lines: Only the last so many of each; None for all.
        since: Only those from this Unix time on; None for all.
        follow: Go on until interrupted or the cluster goes down, also across agents.
        after: Where to begin in each log instead; afterwards where to go on.

    Raises:
        ClusterError: The cluster never ran here, or a task is unknown.
    """
    arguments = {"tasks": list(tasks), "lines": lines, "since": since}
    return _read(cluster, Call.LOGS, follow, {} if after is None else after, arguments)


def read_events(
    cluster: str, *, lines: int | None = None, since: float | None = None, follow: bool = False
) -> Iterator[dict[str, Any]]:
    """What happened to a cluster, each as {time, event, task, detail}.

    Args:
        cluster: Its name; it may be down.
        lines: Only the last so many; None for all.
        since: Only those from this Unix time on; None for all.
        follow: Go on until interrupted or the cluster goes down, also across agents.

    Raises:
        ClusterError: The cluster never ran here.
    """
    return _read(cluster, Call.EVENTS, follow, {}, {"lines": lines, "since": since})


def _read(
    cluster: str, call: Call, follow: bool, after: dict[str, int], arguments: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The lines that a call gives; where an agent dies, the next one goes on behind the last line."""
    if not state_folder(cluster).exists():
        raise not_running(cluster)
    lost = 0
    while True:
        # Also for a cluster that is down it is an agent that reads the logs of its host.
        answer = Connection(cluster).stream(call, start=True, follow=follow, after=after, **arguments)
        try:
            for message in answer:
                if "after" in message:
                    after.update(message["after"])
                    continue
                after[message["log"]] = message["next"]
                lost = 0
                yield message["line"]
            return
        except AgentGoneError:
            lost += 1
            if lost == _AGENTS:
                raise
            time.sleep(_PAUSE_SECONDS)
            # Where the cluster went down with its agent, there is only the rest to be read.
            follow = follow and journal_path(cluster).exists()
        finally:
            answer.leave()  # an agent that was started for this ends before it does
