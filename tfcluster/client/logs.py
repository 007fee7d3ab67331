"""Read the logs and events of a cluster's tasks from all its hosts, merged into one stream."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import StreamContext, map_hosts, merge_streams
from tfcluster.client.reconnect import ReconnectPolicy
from tfcluster.client.rpc import AgentClient, AgentDisconnectedError
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.logs import EventsRequest, LogPositions, LogsRequest
from tfcluster.protocol.serialization import to_json
from tfcluster.transport.base import not_running

Line = dict[str, Any]
#: The offset at which to continue in each log, by host and log.
Positions = dict[str, dict[str, int]]


def read_logs(
    cluster: Cluster,
    tasks: Sequence[str] = (),
    *,
    lines: int | None = None,
    since: float | None = None,
    follow: bool = False,
    after: Positions | None = None,
) -> Iterator[Line]:
    """Read lines of the tasks' logs, each as {task, time, line}.

    The lines are sorted by their time in Unix seconds; with `follow` they are returned in the order of their arrival.

    Args:
        cluster: The cluster; if it is down, its last logs are read.
        tasks: Tasks or jobs; all if empty.
        lines: The number of lines to read from the end of each log; None for all.
        since: Read only lines from this Unix time on; None for all.
        follow: Continue until interrupted or until the cluster goes down. An agent that dies is replaced, and a host
            that cannot be reached is retried until it is back.
        after: The offset at which to start in each log, instead of `lines` and `since`; updated in place to the
            offset at which to continue.

    Returns:
        An iterator over the lines.

    Raises:
        ClusterError: The cluster never ran, a task is unknown, or a host cannot be reached (raised after the lines of
            the other hosts).
    """
    if cluster.is_here:
        wanted: Mapping[str, Sequence[str]] = dict.fromkeys(cluster.hosts, tasks)
    else:
        from tfcluster.client.log_routing import hosts_for_logs

        wanted = hosts_for_logs(cluster, tasks)
    requests = {host: LogsRequest(tuple(names), lines, since, follow, {}) for host, names in wanted.items()}
    return _read_all(cluster, requests, {} if after is None else after)


def read_events(
    cluster: Cluster, *, lines: int | None = None, since: float | None = None, follow: bool = False
) -> Iterator[Line]:
    """Read a cluster's events, each as {time, event, task, detail} and, for a cluster on several hosts, {host}.

    Args:
        cluster: The cluster; it may be down.
        lines: The number of latest events to read; None for all.
        since: Read only events from this Unix time on; None for all.
        follow: As in `read_logs`.

    Returns:
        An iterator over the events.

    Raises:
        ClusterError: The cluster never ran, or a host cannot be reached (raised after the events of the other hosts).
    """
    requests = dict.fromkeys(cluster.hosts, EventsRequest(lines, since, follow, {}))
    events = _read_all(cluster, requests, {})
    # Every host returned that many of its own, so cut the merged list. With `follow`, future events must not be cut.
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
    cluster: Cluster, requests: Mapping[str, LogsRequest | EventsRequest], after: Positions
) -> Iterator[Line]:
    """Merge the lines that several hosts return, each of which gets its own request."""
    streams = {
        host: partial(_read, cluster.connect(host), request, after.setdefault(host, {}))
        for host, request in requests.items()
    }
    follow = any(request.follow for request in requests.values())
    if cluster.is_here:
        (stream,) = streams.values()
        yield from stream(StreamContext(*streams))
        return
    wrong: dict[str, ClusterError] = {}
    for host, line in merge_streams(streams) if follow else _by_time(streams, wrong):
        if isinstance(line, ClusterError):
            wrong[host] = line
        else:
            yield {**line, "host": host} if isinstance(requests[host], EventsRequest) else line
    never = [error for error in wrong.values() if error.exit_code is ExitCode.NOT_RUNNING]
    if never and len(never) == len(requests):
        raise never[0]
    away = {host: error for host, error in wrong.items() if error not in never}
    if away:
        from tfcluster.client.snapshot import unreachable

        raise unreachable(cluster.name, away)


def _by_time(
    streams: Mapping[str, partial[Iterator[Line]]], wrong: dict[str, ClusterError]
) -> Iterator[tuple[str, Line]]:
    """Merge the lines of several hosts in the order of their time; the errors are stored in `wrong`, by host."""

    def begin(host: str) -> Iterator[Line]:
        """Open a host's stream and wait for its first line, so that all hosts work on their request in parallel."""
        lines = streams[host](StreamContext(host))
        return itertools.chain(list(itertools.islice(lines, 1)), lines)

    def tagged(host: str, lines: Iterator[Line]) -> Iterator[tuple[str, Line]]:
        try:
            for line in lines:
                yield host, line
        except ClusterError as error:
            wrong[host] = error

    begun = map_hosts(streams, begin, settings.LOG_FIRST_LINE_SECONDS)
    wrong.update({host: lines for host, lines in begun.items() if isinstance(lines, ClusterError)})
    parts = [tagged(host, lines) for host, lines in begun.items() if not isinstance(lines, ClusterError)]
    return heapq.merge(*parts, key=lambda part: part[1]["time"])


def _read(
    connection: AgentClient,
    request: LogsRequest | EventsRequest,
    after: dict[str, int],
    strand: StreamContext,
) -> Iterator[Line]:
    """Read the lines of one host; if its agent dies or the connection breaks, reconnect and resume after the last line.

    Args:
        connection: The host's agent.
        request: Which lines to read; with `follow`, until the cluster goes down.
        after: The offset at which to continue in each log; updated in place.
        strand: The context of the stream.
    """
    follow = request.follow
    lasting = ReconnectPolicy(
        connection,
        strand,
        settings.LOG_AGENTS,
        patience=None if follow else settings.LOG_RECONNECT_SECONDS,
        insistent=follow,
    )
    if not lasting.opened(connection.transport.has_state):
        raise not_running(connection.transport.cluster)
    follows = follow
    while True:
        # If the cluster is down, an agent is started to read the logs of its host.
        request = replace(request, follow=follows, after=dict(after))
        response = lasting.opened(partial(connection.stream, request, start=True))
        try:
            for event in strand.events(response):
                if isinstance(event, LogPositions):
                    after.update(event.after)
                    continue
                after[event.log] = event.next
                lasting.heard()
                yield to_json(event.line)
            return
        except AgentDisconnectedError as error:
            lasting.lost(error)
            # If the cluster went down with its agent, only the remaining lines have to be read.
            follows = follows and lasting.opened(connection.transport.is_up)
        finally:
            response.close_and_reap()  # wait for the exit of an agent that was started for this request only
