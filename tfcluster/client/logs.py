"""Reading what a cluster's tasks printed and what happened to them, from all its hosts as from one."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import StreamContext, map_hosts, merge_streams
from tfcluster.client.reconnect import ReconnectPolicy
from tfcluster.client.rpc import AgentClient, AgentDisconnectedError
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Method
from tfcluster.transport.base import not_running

Line = dict[str, Any]
#: Where to go on in each log, by host and log.
Positions = dict[str, dict[str, int]]

# So many agents may die one after the other, without a line from any, before something is said to be wrong.
_AGENTS = 5
# A host elsewhere has so long for its first line, and so long to come back where nobody follows its logs.
_FIRST_SECONDS = 20.0
_AWAY_SECONDS = 5.0


def read_logs(
    cluster: Cluster,
    tasks: Sequence[str] = (),
    *,
    lines: int | None = None,
    since: float | None = None,
    follow: bool = False,
    after: Positions | None = None,
) -> Iterator[Line]:
    """Lines of the tasks' logs, each as {task, time, line}: by their time in Unix seconds, or as they come.

    Args:
        cluster: The cluster; it may be down, then its last logs are read.
        tasks: Tasks or jobs; all when empty.
        lines: Only the last so many of each; None for all.
        since: Only those from this Unix time on; None for all.
        follow: Go on until interrupted or the cluster goes down, also across agents, and when a host is back that
            could not be reached for a while.
        after: Where to begin in each log instead; afterwards where to go on.

    Raises:
        ClusterError: The cluster never ran, a task is unknown, or, once the others are read, a host is away.
    """
    if cluster.is_here:
        wanted: Mapping[str, Sequence[str]] = dict.fromkeys(cluster.hosts, tasks)
    else:
        from tfcluster.client.log_routing import hosts_for_logs

        wanted = hosts_for_logs(cluster, tasks)
    asked = {host: {"tasks": list(names), "lines": lines, "since": since} for host, names in wanted.items()}
    return _read_all(cluster, Method.LOGS, asked, follow, {} if after is None else after)


def read_events(
    cluster: Cluster, *, lines: int | None = None, since: float | None = None, follow: bool = False
) -> Iterator[Line]:
    """What happened to a cluster, each as {time, event, task, detail}, and of a cluster on several hosts {host}.

    Args:
        cluster: The cluster; it may be down.
        lines: Only the last so many; None for all.
        since: Only those from this Unix time on; None for all.
        follow: As in `read_logs`.

    Raises:
        ClusterError: The cluster never ran, or, once the others are read, a host is away.
    """
    asked = {host: {"lines": lines, "since": since} for host in cluster.hosts}
    events = _read_all(cluster, Method.EVENTS, asked, follow, {})
    # As many of each host came; of those that come yet none is left out.
    return events if lines is None or follow else _last(events, lines)


def _last(events: Iterator[Line], count: int) -> Iterator[Line]:
    kept: deque[Line] = deque(maxlen=count)
    try:
        kept.extend(events)
    except ClusterError:
        yield from kept
        raise
    yield from kept


def _read_all(
    cluster: Cluster, call: Method, asked: Mapping[str, Mapping[str, Any]], follow: bool, after: Positions
) -> Iterator[Line]:
    """The lines that a call gives on each host that is asked."""
    streams = {
        host: partial(_read, cluster.connect(host), call, arguments, follow, after.setdefault(host, {}))
        for host, arguments in asked.items()
    }
    if cluster.is_here:
        (stream,) = streams.values()
        yield from stream(StreamContext(*streams))
        return
    wrong: dict[str, ClusterError] = {}
    for host, line in merge_streams(streams) if follow else _by_time(streams, wrong):
        if isinstance(line, ClusterError):
            wrong[host] = line
        else:
            yield {**line, "host": host} if call is Method.EVENTS else line
    never = [error for error in wrong.values() if error.exit_code is ExitCode.NOT_RUNNING]
    if never and len(never) == len(asked):
        raise never[0]
    away = {host: error for host, error in wrong.items() if error not in never}
    if away:
        from tfcluster.client.snapshot import unreachable

        raise unreachable(cluster.name, away)


def _by_time(
    streams: Mapping[str, partial[Iterator[Line]]], wrong: dict[str, ClusterError]
) -> Iterator[tuple[str, Line]]:
    """The lines of several hosts in the order of their time; what goes wrong is noted by host."""

    def begin(host: str) -> Iterator[Line]:
        """A host's lines, of which the first has come: so all are asked at the same time."""
        lines = streams[host](StreamContext(host))
        return itertools.chain(list(itertools.islice(lines, 1)), lines)

    def tagged(host: str, lines: Iterator[Line]) -> Iterator[tuple[str, Line]]:
        try:
            for line in lines:
                yield host, line
        except ClusterError as error:
            wrong[host] = error

    begun = map_hosts(streams, begin, _FIRST_SECONDS)
    wrong.update({host: lines for host, lines in begun.items() if isinstance(lines, ClusterError)})
    parts = [tagged(host, lines) for host, lines in begun.items() if not isinstance(lines, ClusterError)]
    return heapq.merge(*parts, key=lambda part: part[1]["time"])


def _read(
    connection: AgentClient,
    call: Method,
    arguments: Mapping[str, Any],
    follow: bool,
    after: dict[str, int],
    strand: StreamContext,
) -> Iterator[Line]:
    """The lines of one host; where an agent dies or the way to it breaks, the next one goes on behind the last line."""
    lasting = ReconnectPolicy(connection, strand, _AGENTS, patience=None if follow else _AWAY_SECONDS, insistent=follow)
    if not lasting.opened(connection.reach.has_state):
        raise not_running(connection.reach.cluster)
    follows = follow
    while True:
        # Also for a cluster that is down it is an agent that reads the logs of its host.
        answer = lasting.opened(partial(connection.stream, call, start=True, follow=follows, after=after, **arguments))
        try:
            for message in strand.events(answer):
                if "after" in message:
                    after.update(message["after"])
                    continue
                after[message["log"]] = message["next"]
                lasting.heard()
                yield message["line"]
            return
        except AgentDisconnectedError as error:
            lasting.lost(error)
            # Where the cluster went down with its agent, there is only the rest to be read.
            follows = follows and lasting.opened(connection.reach.is_up)
        finally:
            answer.leave()  # an agent that was started for this ends before it does
