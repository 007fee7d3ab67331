"""Follow a cluster: what `top` and the page in a browser show, kept up to date by the agents, without asking again.

`LiveCluster` has threads that read streams of the agents: the status at each change, the events, and the progress of
runs that are active. Only what is measured (processor time, memory, traffic, GPUs) is asked for, at an interval. A
thread whose host is lost connects again until it is back; meanwhile the host's link says since when and why.

    live = LiveCluster(cluster, take_snapshot(cluster), changed)  # `changed` is called from its threads
    live.start()
    view = live.view()  # a `LiveView`: values that do not change any more, and that any thread may read
    live.close()

A view has the status as `status -o json` has it, with the hosts' load and the tasks' traffic; `rates` of the tasks;
`links` of the hosts; `runs`, the oldest first, each with its record, its latest progress and metrics; and the last
`events`, the oldest first. `ended` is the error to end with, once the cluster is down on all hosts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster, cluster_of
from tfcluster.client.live_view import Link, LiveRun, LiveView, TaskRates, rates_between
from tfcluster.client.logs import Line, read_host
from tfcluster.client.parallel import StreamContext, StreamStoppedError
from tfcluster.client.reconnect import Reconnector, RetryPolicy
from tfcluster.client.status import ClusterSnapshot
from tfcluster.core.status import ClusterStatus, HostUnavailable, TaskStatus, aggregate_status
from tfcluster.core.usage import HostUsage, with_usage
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.cluster import TopologyRequest, UsageRequest, WatchRequest
from tfcluster.protocol.api.logs import EventsRequest, LogsRequest
from tfcluster.protocol.api.runs import AttachRequest, RunEvent, RunsRequest


@dataclass
class _HostState:
    """What is known of a host: its latest status and usage, and when they arrived, in monotonic seconds."""

    report: ClusterStatus | HostUnavailable
    at: float = 0.0
    link: Link = field(default_factory=Link)
    usage: HostUsage | None = None
    usage_at: float = 0.0


class LiveCluster:
    """Follows a cluster until it is closed, or the cluster is down.

    Args:
        cluster: The cluster.
        snapshot: Its present state.
        changed: Called from another thread after each change; it must return at once.
    """

    def __init__(self, cluster: Cluster, snapshot: ClusterSnapshot, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._topology = snapshot.topology
        self._changed = changed
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        now = time.monotonic()
        names = [host.host for host in snapshot.status.hosts]
        self._hosts = {name: _HostState(snapshot.statuses.get(name, "down"), now) for name in names}
        for host, error in snapshot.errors.items():
            self._hosts[host] = _HostState("unreachable", now, Link(time.time(), error.message))
        self._rates: dict[str, TaskRates] = {}
        self._runs: dict[str, LiveRun] = {}
        self._events: deque[Line] = deque(maxlen=settings.LIVE_EVENTS)
        self._ended: ClusterError | None = None

    def start(self) -> None:
        """Start to follow the cluster on all its hosts."""
        for host in self._cluster.hosts:
            self._follow_host(host)

    def close(self) -> None:
        """End all threads; they notice it in a moment, and nothing waits for them."""
        self._stopped.set()

    def view(self) -> LiveView:
        """Return what is known of the cluster now."""
        with self._lock:
            reports = {name: host.report for name, host in self._hosts.items()}
            status = aggregate_status(self._topology, reports)
            usages = {name: host.usage for name, host in self._hosts.items() if host.usage and not host.link.lost_at}
            tasks = tuple(self._freshen(task) for task in status.tasks)
            return LiveView(
                with_usage(replace(status, tasks=tasks), usages),
                {name: host.link for name, host in self._hosts.items()},
                dict(self._rates),
                tuple(sorted(self._runs.values(), key=lambda run: run.record.started)),
                tuple(sorted(self._events, key=lambda event: float(event["time"]))),
                self._ended,
            )

    def follow_log(self, name: str, host: str, show: Callable[[Line], None]) -> Callable[[], None]:
        """Follow the log of a task or a run in another thread.

        Args:
            name: The task or the run.
            host: Its host.
            show: Called from the thread with each line: the last ones first, then new ones.

        Returns:
            A function that ends this.
        """
        stopped = threading.Event()
        request = LogsRequest((name,), settings.LIVE_LOG_LINES, None, True, {})

        def read(context: StreamContext) -> None:
            for line in read_host(self._cluster.connect(host), request, {}, context):
                show(line)

        self._start(read, StreamContext(host, lambda text: None, stopped))
        return stopped.set

    def _freshen(self, task: TaskStatus) -> TaskStatus:
        """Return the status of a task as it is now: its latest report is from the last change."""
        host = self._hosts.get(task.host)
        if host is None or task.uptime_s is None:
            return task
        usage, rates = host.usage and host.usage.tasks.get(task.task), self._rates.get(task.task)
        return replace(
            task,
            uptime_s=task.uptime_s + time.monotonic() - host.at,
            rss_bytes=usage.rss_bytes if usage else task.rss_bytes,
            cpu_percent=rates.cpu_percent if rates else task.cpu_percent,
        )

    def _start(self, body: Callable[[StreamContext], None], context: StreamContext) -> None:
        def run() -> None:
            with contextlib.suppress(StreamStoppedError, ClusterError):
                body(context)

        threading.Thread(target=run, daemon=True).start()

    def _follow_host(self, host: str) -> None:
        # The watch tells that the link is lost; it is back when the next status arrives.
        self._start(partial(self._watch, host), StreamContext(host, partial(self._lose, host), self._stopped))
        for body in (self._measure, self._read_events):
            self._start(partial(body, host), StreamContext(host, lambda text: None, self._stopped))

    def _lose(self, host: str, reason: str) -> None:
        """Note that the agent of a host does not answer; a text that it answers again says nothing new."""
        if reason.endswith("connected again"):
            return
        with self._lock:
            state = self._hosts[host]
            if self._cluster.connect(host).transport.is_remote:
                state.report = "unreachable"
            if state.link.lost_at is None:
                state.link = Link(time.time(), reason.removesuffix(", trying again"))
        self._changed()

    def _watch(self, host: str, context: StreamContext) -> None:
        client = self._cluster.connect(host)
        policy = RetryPolicy(settings.LOG_AGENTS)
        while True:
            reconnector: Reconnector[ClusterStatus, Done] = Reconnector(client, context, policy)
            try:
                for status in reconnector.events(lambda: client.stream(WatchRequest(settings.LIVE_WATCH_SECONDS))):
                    if status is None:
                        self._lose(host, "the agent has ended; the next one starts")
                    else:
                        self._take_status(host, status)
            except ClusterError as error:
                if self._note_error(host, error):
                    return
            context.sleep(settings.LIVE_RETRY_SECONDS)

    def _note_error(self, host: str, error: ClusterError) -> bool:
        """Take in why a host does not report its status; return whether the cluster is down on all hosts."""
        if error.exit_code is not ExitCode.NOT_RUNNING:
            self._lose(host, error.message)
            return False
        with self._lock:
            self._hosts[host].report, self._hosts[host].link = "down", Link()
            is_down = all(state.report == "down" for state in self._hosts.values())
            if is_down:
                name = self._cluster.name
                self._ended = ClusterError(
                    f"cluster {name!r} went down", hint="`tfcluster up` starts it again.", exit_code=error.exit_code
                )
        self._changed()
        return is_down

    def _take_status(self, host: str, status: ClusterStatus) -> None:
        with self._lock:
            state = self._hosts[host]
            state.report, state.at, state.link = status, time.monotonic(), Link()
            names = {task.name for task in self._topology.on(host)}
            known = {run.record.run: run.record.state for run in self._runs.values() if run.host == host}
        self._changed()
        if {task.task for task in status.tasks} != names:
            self._take_topology(host)
        if any(known.get(run.run) is not run.state for run in status.runs):
            self._take_runs(host)

    def _take_topology(self, host: str) -> None:
        """Take in a topology that has changed, and follow the hosts that it has more."""
        with contextlib.suppress(ClusterError):
            topology = self._cluster.connect(host).call(TopologyRequest(settled=False))
            with self._lock:
                if topology.generation < self._topology.generation:
                    return
                self._topology = topology
                added = [each.name for each in topology.hosts if each.name not in self._hosts]
                if added:
                    self._cluster = cluster_of(topology)
                for name in added:
                    self._hosts[name] = _HostState("unreachable")
            for name in added:
                self._follow_host(name)

    def _take_runs(self, host: str) -> None:
        """Take in the records of a host's runs, and follow those that are active."""
        with contextlib.suppress(ClusterError):
            records = self._cluster.connect(host).call(RunsRequest(settings.LIVE_RUNS)).runs
            with self._lock:
                before = dict(self._runs)
                self._runs = {name: run for name, run in self._runs.items() if run.host != host}
                for record in records:
                    earlier = before.get(record.run)
                    run = replace(earlier, record=record) if earlier else LiveRun(host, record)
                    self._runs[record.run] = run
                    if earlier is None and run.is_active:
                        context = StreamContext(host, lambda text: None, self._stopped)
                        self._start(partial(self._follow_run, host, record.run), context)
        self._changed()

    def _follow_run(self, host: str, run: str, context: StreamContext) -> None:
        client = self._cluster.connect(host)
        # What was received already is sent again by the next agent, and says nothing new.
        request = AttachRequest(run, 0, None, owned=False)
        reconnector: Reconnector[RunEvent, Done] = Reconnector(client, context, RetryPolicy(settings.STREAM_AGENTS))
        for event in reconnector.events(lambda: client.stream(request)):
            if event is not None:
                self._take_run_event(run, event.record)

    def _take_run_event(self, run: str, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        with self._lock:
            if run not in self._runs:
                return
            if kind == "progress":
                self._runs[run] = replace(self._runs[run], progress=event)
            elif kind == "metric":
                self._runs[run] = replace(self._runs[run], metric=event)
            elif kind in ("waiting", "waiting_ended"):
                self._runs[run] = replace(self._runs[run], wait=event if kind == "waiting" else None)
            else:
                return
        self._changed()

    def _read_events(self, host: str, context: StreamContext) -> None:
        request = EventsRequest(settings.LIVE_EVENTS, None, True, {})
        for event in self._lines(host, request, context):
            with self._lock:
                self._events.append(self._cluster.add_host(event, host))
            self._changed()

    def _lines(self, host: str, request: EventsRequest, context: StreamContext) -> Iterator[Line]:
        """Yield the lines of a host, which may be away at first, and whose agents may die."""
        after: dict[str, int] = {}
        while True:
            with contextlib.suppress(ClusterError):
                yield from read_host(self._cluster.connect(host), request, after, context)
            context.sleep(settings.LIVE_RETRY_SECONDS)

    def _measure(self, host: str, context: StreamContext) -> None:
        while True:
            with contextlib.suppress(ClusterError):
                if self._hosts[host].link.lost_at is None:  # else the watch connects again, and one is enough
                    self._take_usage(host, self._cluster.connect(host).call(UsageRequest()))
            context.sleep(settings.LIVE_USAGE_SECONDS)

    def _take_usage(self, host: str, usage: HostUsage) -> None:
        with self._lock:
            state, now = self._hosts[host], time.monotonic()
            if state.usage is not None and now > state.usage_at:
                for name, task in usage.tasks.items():
                    if (earlier := state.usage.tasks.get(name)) is not None:
                        self._rates[name] = rates_between(earlier, task, now - state.usage_at)
            state.usage, state.usage_at = usage, now
        self._changed()
