"""Follow a cluster: what `top` and the page in a browser show, kept up to date by the agents, without asking again.

`LiveCluster` has threads that read streams of the agents: the status at each change, the events, and those of runs that
are active or looked at. Only what is measured (processor time, memory, GPUs) is asked for, at an interval,
while a view wants it. A thread whose host is lost connects again until it is back; meanwhile the host's link says since
when and why. A cluster that is down is looked for until it is up again.

    live = LiveCluster(cluster, None, changed)  # `changed` is called from its threads
    live.start()
    view = live.view()  # a `LiveView`: values that do not change any more, and that any thread may read
    live.close()
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Iterable
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.hosts import LiveHosts, LiveRun, LiveView
from tfcluster.client.live.run_history import RunHistory, read_run_events
from tfcluster.client.logs import Line, read_host
from tfcluster.client.rpc.parallel import StreamContext, StreamStoppedError
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs.locate import locate_run
from tfcluster.client.status import ClusterSnapshot
from tfcluster.core.log_levels import LogLevel
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.core.status import ClusterStatus, RunStatus
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.cluster import TopologyRequest, UsageRequest, WatchRequest
from tfcluster.protocol.api.logs import EventsRequest, LogsRequest
from tfcluster.protocol.api.runs import RunsRequest, RunSummary


class LiveEvents:
    """Keeps the latest events of hosts. Thread-safe. `count` is how many have arrived."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[tuple[float, int, Line]] = []  # with their times, and the numbers of their arrivals
        self.count = 0

    def take(self, event: Line) -> None:
        """Take in an event, unless it is known: it is read once more if the link was lost."""
        with self._lock:
            if all(event != known for _, _, known in self._events):
                self.count += 1
                bisect.insort(self._events, (float(event["time"]), self.count, event))
                del self._events[: -settings.LIVE_EVENTS]

    def latest(self) -> tuple[Line, ...]:
        """Return the latest events, the oldest first."""
        with self._lock:
            return tuple(event for _, _, event in self._events)

    def between(self, first: int, last: int) -> list[Line]:
        """Return those of the latest events that have arrived after `first` others and up to `last`, oldest first."""
        with self._lock:
            return [event for _, number, event in self._events if first < number <= last]


class LiveRuns:
    """Keeps the records of runs, and the histories of the latest ones that were active or looked at. Thread-safe.

    `read` is called to start a thread that reads the events of a run, given its history and the host that leads it, if
    that is known. `version` counts the changes of records.
    """

    def __init__(self, read: Callable[[RunHistory, str | None], None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._records: dict[str, tuple[str, RunSummary]] = {}
        self._histories: dict[str, RunHistory] = {}
        self._followed: set[str] = set()
        self.version = 0

    def is_stale(self, host: str, runs: Iterable[RunStatus]) -> bool:
        """Return whether runs of a host have other states than its records."""
        with self._lock:
            known = {name: record.state for name, (leader, record) in self._records.items() if leader == host}
        return any(known.get(run.run) is not run.state for run in runs)

    def take_records(self, host: str, records: Iterable[RunSummary]) -> None:
        """Take in the records of a host's runs, and follow those that are active."""
        with self._lock:
            others = {name: each for name, each in self._records.items() if each[0] != host}
            self._records = others | {record.run: (host, record) for record in records}
            self.version += 1
            active = [name for name, (_, record) in self._records.items() if record.state in ACTIVE_RUN_STATES]
        for run in active:
            self.follow(run)

    def follow(self, run: str) -> RunHistory:
        """Follow a run up to its result, in a thread of its own, unless that is done already; return its history."""
        with self._lock:
            history = self._histories.pop(run, None) or RunHistory(run)
            self._histories[run] = history  # the last one that is dropped
            is_new = run not in self._followed and history.result is None
            if is_new:
                self._followed.add(run)
            host = self._records[run][0] if run in self._records else None
            for other in list(self._histories)[: -settings.LIVE_HISTORIES]:
                if other not in self._followed:
                    del self._histories[other]
        if is_new:
            self._read(history, host)
        return history

    def unfollow(self, run: str) -> None:
        """Note that the events of a run are no longer read; its next change of state, if any, starts that again."""
        with self._lock:
            self._followed.discard(run)

    def view(self) -> tuple[LiveRun, ...]:
        """Return the runs, the oldest first."""
        with self._lock:
            runs = [
                LiveRun(host, record, history.progress, history.metrics, history.step, history.wait)
                if (history := self._histories.get(name)) is not None
                else LiveRun(host, record)
                for name, (host, record) in self._records.items()
            ]
        return tuple(sorted(runs, key=lambda run: run.record.started))

    def versions(self) -> dict[str, int]:
        """Return how often each history has changed, by run."""
        with self._lock:
            return {run: history.version for run, history in self._histories.items()}


class _ViewContext(StreamContext):
    """The context of a stream whose view shows by itself that a host is lost or back; nothing is printed."""

    def __init__(self, host: str, stopped: threading.Event, report_lost: Callable[[str], None]) -> None:
        super().__init__(host, lambda text: None, stopped)
        self._report_lost = report_lost

    def on_lost(self, reason: str) -> None:
        """See `StreamContext.on_lost`."""
        self._report_lost(reason)


class LiveCluster:
    """Follows a cluster until it is closed.

    Args:
        snapshot: The present state of the cluster; None if that is not known, and it may be down.
        changed: Called from another thread after each change; it must return at once.
    """

    def __init__(self, cluster: Cluster, snapshot: ClusterSnapshot | None, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._changed = changed
        self._closed = threading.Event()
        self._lock = threading.Lock()  # of the hosts that are followed
        self._stops: dict[str, threading.Event] = {}
        self._is_measured = threading.Event()
        self.hosts = LiveHosts(cluster, snapshot)
        self.runs = LiveRuns(self._follow_run)
        self.events = LiveEvents()

    def start(self) -> None:
        """Start to follow the cluster on all its hosts."""
        with self._lock:
            for host in self._cluster.hosts:
                self._follow_host(host)

    def measure(self, is_wanted: bool) -> None:
        """Begin or cease to ask what hosts and tasks use."""
        (self._is_measured.set if is_wanted else self._is_measured.clear)()

    def close(self) -> None:
        """End all threads; they notice it in a moment, and nothing waits for them."""
        self._closed.set()
        with self._lock:
            for stopped in self._stops.values():
                stopped.set()
        self._is_measured.set()

    def view(self) -> LiveView:
        """Return what is known of the cluster now."""
        down = self.hosts.find_failure()  # first: with it, no task is shown that runs
        status, links = self.hosts.status(), self.hosts.links()
        return LiveView(status, links, self.runs.view(), self.events.latest(), down)

    def follow_log(
        self,
        name: str,
        host: str,
        level: LogLevel,
        show: Callable[[Line], None],
        on_hidden: Callable[[int], None],
    ) -> Callable[[], None]:
        """Follow the log of a task or a run in another thread; return a function that ends this.

        That thread calls `show` with each line: the last ones first, then new ones; and `on_hidden` with the number
        of entries of TensorFlow that are below the level.
        """
        stopped = threading.Event()
        request = LogsRequest((name,), settings.LIVE_LOG_LINES, None, True, {}, level=level)

        def read(context: StreamContext) -> None:
            for line in read_host(self._cluster.connect(host), request, {}, on_hidden, context):
                show(line)

        _start_thread(host, read, stopped)
        return stopped.set

    def _follow_run(self, history: RunHistory, host: str | None) -> None:
        _start_thread(host or self._cluster.head, partial(self._read_run, history, host), self._closed)

    def _follow_host(self, host: str) -> None:
        stopped = self._stops[host] = threading.Event()
        # The link is back when the next status arrives.
        _start_thread(host, partial(self._watch, host), stopped, partial(self._lose, host))
        _start_thread(host, partial(self._measure, host), stopped)
        _start_thread(host, partial(self._read_events, host), stopped)

    def _lose(self, host: str, reason: str) -> None:
        self.hosts.lose(host, reason, is_remote=self._cluster.connect(host).transport.is_remote)
        self._changed()

    def _watch(self, host: str, context: StreamContext) -> None:
        client = self._cluster.connect(host)
        policy = RetryPolicy(settings.LOG_AGENTS)
        was_up = False
        while True:
            reconnector: Reconnector[ClusterStatus, Done] = Reconnector(client, context, policy)
            try:
                for status in reconnector.events(lambda: client.stream(WatchRequest(settings.LIVE_WATCH_SECONDS))):
                    if status is None:
                        self._lose(host, "the agent has exited; the next one is starting")
                    else:
                        was_up = True
                        self._take_status(host, status)
            except ClusterError as error:
                if error.exit_code is not ExitCode.NOT_RUNNING:
                    self._lose(host, error.message)
                elif not self.hosts.is_down(host):
                    self._note_down(host, context, was_up=was_up)
            context.sleep(settings.LIVE_RETRY_SECONDS)

    def _note_down(self, host: str, context: StreamContext, *, was_up: bool) -> None:
        """Note that the cluster is down on a host; when it is on all hosts, read how the runs have ended."""
        self.hosts.note_down(host)
        self._changed()
        if self.hosts.find_failure() is None:
            return
        if was_up:
            context.sleep(settings.LIVE_RETRY_SECONDS)  # `down` needs no agent that reads
        for each in self._cluster.hosts:
            with contextlib.suppress(ClusterError):
                if self.hosts.is_down(each) and self._cluster.connect(each).transport.has_state():
                    self._take_runs(each, start=True)

    def _take_status(self, host: str, status: ClusterStatus) -> None:
        self.hosts.take_status(host, status)
        if self.hosts.lacks_topology(host):
            self._take_topology(host)
        self._changed()
        if self.runs.is_stale(host, status.runs):
            with contextlib.suppress(ClusterError):
                self._take_runs(host, start=False)

    def _take_topology(self, host: str) -> None:
        """Take in a topology that has changed: follow the added hosts, and no longer the removed ones."""
        with contextlib.suppress(ClusterError):
            topology = self._cluster.connect(host).call(TopologyRequest())
            with self._lock:
                added, removed = self.hosts.take_topology(topology)
                self._cluster = self._cluster.with_hosts_of(topology)
                for name in removed:
                    self._stops.pop(name).set()
                    self.runs.take_records(name, ())  # no host would report the end of an active one
                for name in added:
                    self._follow_host(name)

    def _take_runs(self, host: str, *, start: bool) -> None:
        request = RunsRequest(settings.LIVE_RUNS)
        self.runs.take_records(host, self._cluster.connect(host).call(request, start=start).runs)
        self._changed()

    def _measure(self, host: str, context: StreamContext) -> None:
        while True:
            if not self._is_measured.is_set():
                self.hosts.forget_usage(host)
                self._is_measured.wait()
                context.sleep(0.0)  # ends here if the view was closed
            with contextlib.suppress(ClusterError):
                if not (self.hosts.is_lost(host) or self.hosts.is_down(host)):  # else the watch connects again
                    self.hosts.take_usage(host, self._cluster.connect(host).call(UsageRequest()))
                    self._changed()
            context.sleep(settings.LIVE_USAGE_SECONDS)

    def _read_events(self, host: str, context: StreamContext) -> None:
        """Read the events of a host, which may be away at first, and on which the cluster may be down for a time."""
        while True:
            follows = not self.hosts.is_down(host)
            request = EventsRequest(settings.LIVE_EVENTS, None, follows, {})
            with contextlib.suppress(ClusterError):
                for event in read_host(self._cluster.connect(host), request, {}, None, context):
                    self.events.take(self._cluster.add_host(event, host))
                    self._changed()
            context.sleep(settings.LIVE_RETRY_SECONDS)
            while not follows and self.hosts.is_down(host):
                context.sleep(settings.LIVE_RETRY_SECONDS)

    def _read_run(self, history: RunHistory, host: str | None, context: StreamContext) -> None:
        """Read the events of a run; if that fails, the next change of a run's state tries again."""
        cluster, run = self._cluster, history.run
        try:
            leader, run = locate_run(cluster, run, start=True) if host is None else (cluster.led_by(host), run)
            for event in read_run_events(leader, run, context, history.version):
                history.update(event)
                self._changed()
        finally:
            self.runs.unfollow(history.run)
            self._changed()


def _start_thread(
    host: str,
    body: Callable[[StreamContext], None],
    stopped: threading.Event,
    report_lost: Callable[[str], None] = lambda reason: None,
) -> None:
    """Start a thread that reads streams of a host with `body`, until it is stopped or there is an error."""

    def run() -> None:
        with contextlib.suppress(StreamStoppedError, ClusterError):
            body(_ViewContext(host, stopped, report_lost))

    threading.Thread(target=run, daemon=True).start()
