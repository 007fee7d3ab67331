"""Read the logs and events of a cluster's tasks from the hosts that have them, merged into one stream."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster, unknown_cluster
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.client.rpc.parallel import StreamContext, call_hosts, map_hosts, merge_streams, unreachable
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs.locate import locate_run
from tfcluster.core.log_levels import LogLevel
from tfcluster.core.text import compile_patterns
from tfcluster.core.topology import latest_topology, matching_tasks, unknown_log
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.api.logs import AGENT_LOG, EventsRequest, LogPositions, LogsRequest
from tfcluster.protocol.serialization import to_json

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
    agent: str | None = None,
    until: float | None = None,
    grep: Sequence[str] = (),
    level: LogLevel | None = None,
    on_hidden: Callable[[int], None] | None = None,
) -> Iterator[Line]:
    """Read lines of the tasks' logs, each as {task, time, line} and, of a launch, {member}.

    The lines are sorted by their time in Unix seconds; with `follow` they are returned in the order of their arrival.

    The cluster may be down; then its last logs are read.

    Args:
        tasks: Tasks or jobs, also with wildcards; all if empty.
        lines: The number of lines to read from the end of each log; None for all.
        since: Read only lines from this Unix time on; None for all of runs, and for all of tasks since the cluster was
            started.
        follow: Continue until interrupted or until the cluster goes down. An agent that dies is replaced, and a host
            that cannot be reached is retried until it is back.
        after: The offset at which to start in each log, instead of `lines` and `since`; updated in place to the
            offset at which to continue.
        agent: Read the log of the agent on this host instead, or of all agents if it is empty; None for the tasks.
        until: Read only lines up to this Unix time; None for no limit.
        grep: Regular expressions; only lines that at least one of them matches are read. Empty for all.
        level: Of what TensorFlow itself logs, read only entries from this level on; None for all. `on_hidden` is
            called, in any thread, with a number of entries that are below it.

    Raises:
        ClusterError: The cluster never ran, a task is unknown, a pattern is no regular expression, or a host cannot be
            reached (raised after the lines of the other hosts).
    """
    compile_patterns(grep)
    routes: Mapping[str, Sequence[str]] = dict.fromkeys(cluster.hosts, tasks)
    if agent is not None:
        if agent and agent not in routes:
            raise usage_error(f"{cluster.name} has no host {agent!r}", f"The hosts are {', '.join(routes)}.")
        routes = dict.fromkeys([agent] if agent else routes, (AGENT_LOG,))
    elif len(routes) > 1:
        routes = hosts_for_logs(cluster, tasks)
    request = LogsRequest((), lines, since, follow, {}, until, tuple(grep), level)
    requests = {host: replace(request, tasks=tuple(names)) for host, names in routes.items()}
    return _read_all(cluster, requests, {} if after is None else after, on_hidden)


def read_events(
    cluster: Cluster,
    *,
    lines: int | None = None,
    since: float | None = None,
    until: float | None = None,
    follow: bool = False,
) -> Iterator[Line]:
    """Read a cluster's events, each as {time, event, task, detail} and, for a cluster on several hosts, {host}.

    `lines` is the number of the latest events to read; times are Unix times. The cluster may be down. The error of a
    host that cannot be reached is raised after the events of the other hosts.
    """
    requests = dict.fromkeys(cluster.hosts, EventsRequest(lines, since, follow, {}, until))
    events = _read_all(cluster, requests, {})
    # Every host returned that many of its own, so cut the merged list. With `follow`, future events must not be cut.
    return events if lines is None or follow else _last(events, lines)


def _last(events: Iterator[Line], count: int) -> Iterator[Line]:
    latest: deque[Line] = deque(maxlen=min(count, sys.maxsize))
    try:
        latest.extend(events)
    except ClusterError:
        yield from latest
        raise
    yield from latest


def _read_all(
    cluster: Cluster,
    requests: Mapping[str, LogsRequest | EventsRequest],
    after: Positions,
    on_hidden: Callable[[int], None] | None = None,
) -> Iterator[Line]:
    """Merge the lines that several hosts return. Each host gets its own request."""
    streams = {
        host: partial(read_host, cluster.connect(host), request, after.setdefault(host, {}), on_hidden)
        for host, request in requests.items()
    }
    follow = any(request.follow for request in requests.values())
    errors: dict[str, ClusterError] = {}
    for host, line in merge_streams(streams) if follow else _by_time(streams, errors):
        if isinstance(line, ClusterError):
            errors[host] = line
        else:
            yield cluster.add_host(line, host) if isinstance(requests[host], EventsRequest) else line
    never_ran = [error for error in errors.values() if error.exit_code is ExitCode.NOT_RUNNING]
    if errors and len(never_ran) == len(requests):
        raise never_ran[0]
    if others := {host: error for host, error in errors.items() if error not in never_ran}:
        raise unreachable(cluster, others)


def _by_time(
    streams: Mapping[str, partial[Iterator[Line]]], errors: dict[str, ClusterError]
) -> Iterator[tuple[str, Line]]:
    """Merge the lines of several hosts in the order of their time; the errors are stored in `errors`, by host."""

    def begin(host: str) -> Iterator[Line]:
        """Open a host's stream and wait for its first line, so that all hosts work on their request in parallel."""
        lines = streams[host](StreamContext(host))
        return itertools.chain(list(itertools.islice(lines, 1)), lines)

    def tagged(host: str, lines: Iterator[Line]) -> Iterator[tuple[str, Line]]:
        try:
            for line in lines:
                yield host, line
        except ClusterError as error:
            errors[host] = error

    opened, failed = map_hosts(streams, begin, settings.RPC_SLOW_TIMEOUT_SECONDS)
    errors.update(failed)
    return heapq.merge(*(tagged(host, lines) for host, lines in opened.items()), key=lambda part: part[1]["time"])


def read_host(
    client: AgentClient,
    request: LogsRequest | EventsRequest,
    after: dict[str, int],
    on_hidden: Callable[[int], None] | None,
    context: StreamContext,
) -> Iterator[Line]:
    """Read the lines of one host; if its agent dies or the connection breaks, reconnect and resume after the last line.

    With `follow`, it ends when the cluster goes down. `after` is the offset at which to continue in each log; it is
    updated in place. For `on_hidden` see `read_logs`.
    """
    # A host that is lost while its logs are followed is retried until it is back; otherwise only for some seconds.
    timeout = None if request.follow else settings.LOG_RECONNECT_SECONDS
    policy = RetryPolicy(settings.LOG_AGENTS, timeout, retry_initial=request.follow)
    reconnector: Reconnector[Any, Any] = Reconnector(client, context, policy)
    if not reconnector.connect(client.transport.has_state):
        raise unknown_cluster(client.transport.cluster)
    follows = request.follow

    def open_stream() -> ResponseStream[Any, Any]:
        # If the cluster is down, an agent is started to read the logs of its host.
        return client.stream(replace(request, follow=follows, after=dict(after)), start=True)

    for event in reconnector.events(open_stream, reap_agent=True):
        if event is None:
            # If the cluster went down with its agent, only the remaining lines have to be read.
            follows = follows and reconnector.connect(client.transport.is_up)
        elif isinstance(event, LogPositions):
            after.update(event.after)
            if event.hidden and on_hidden is not None:
                on_hidden(event.hidden)
        else:
            after[event.log] = event.next
            line = to_json(event.line)
            yield {name: value for name, value in line.items() if name != "member" or value is not None}


def hosts_for_logs(cluster: Cluster, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return which logs of tasks, jobs and runs to request from which host; without names, those of all tasks."""
    if not names:
        return dict.fromkeys(cluster.hosts, ())
    replies, _ = call_hosts(cluster, cluster.hosts, TopologyRequest(), settings.HOST_TIMEOUT_SECONDS)
    if not replies:
        return _names_known_to(cluster, cluster.hosts, names)
    topology = latest_topology(replies.values())
    hosts = {task.short: task.host for task in topology.tasks}
    routes: dict[str, list[str]] = {}
    for name in names:
        try:
            short_names = matching_tasks([name], list(hosts))
        except ClusterError as error:  # it may be the name of a run, whose logs are on the host that leads it
            leader, run_id = locate_run(cluster, name, start=True)
            try:
                _names_known_to(cluster, [leader.head], [run_id])
            except ClusterError as run_error:
                if run_error.exit_code is not ExitCode.USAGE:
                    raise
                raise unknown_log(name, error.hint) from None
            routes.setdefault(leader.head, []).append(run_id)
            continue
        for short in short_names:
            routes.setdefault(hosts[short], []).append(short)
    return routes


def _names_known_to(
    cluster: Cluster, hosts: Sequence[str] | Mapping[str, object], names: Sequence[str]
) -> dict[str, list[str]]:
    """Return which of the names each host has logs for, without the hosts that have none of them.

    Raises:
        ClusterError: No host knows one of the names.
    """
    unknown: dict[str, ClusterError] = {}

    def known(host: str) -> list[str]:
        found = []
        for name in names:
            try:
                cluster.connect(host).call(
                    LogsRequest((name,), lines=0, since=None, follow=False, after={}), start=True
                )
                found.append(name)
            except ClusterError as error:
                if error.exit_code is not ExitCode.USAGE:
                    raise
                unknown[name] = error
        return found

    replies, errors = map_hosts(hosts, known, settings.HOST_TIMEOUT_SECONDS)
    routes = {host: names for host, names in replies.items() if names}
    for name in names:
        if not any(name in names for names in routes.values()):
            raise next(iter([*errors.values(), *([unknown[name]] if name in unknown else [])]))
    return routes
