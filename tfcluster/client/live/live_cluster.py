"""Follow a cluster: what `top` and the page in a browser show, kept up to date by the agents, without asking again.

`LiveCluster` has threads that read streams of the agents: the status at each change, the events, and those of runs that
are active or looked at. Only what is measured (processor time, memory, traffic, GPUs) is asked for, at an interval,
while a view wants it. A thread whose host is lost connects again until it is back; meanwhile the host's link says since
when and why. A cluster that is down is looked for until it is up again.

    live = LiveCluster(cluster, None, changed)  # `changed` is called from its threads
    live.start()
    view = live.view()  # a `LiveView`: values that do not change any more, and that any thread may read
    live.close()
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.events import LiveEvents
from tfcluster.client.live.hosts import LiveHosts
from tfcluster.client.live.runs import LiveRuns
from tfcluster.client.live.stream_threads import StreamThreads
from tfcluster.client.live.view import LiveView
from tfcluster.client.logs import Line, read_host
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.status import ClusterSnapshot
from tfcluster.core.log_levels import LogLevel
from tfcluster.core.status import ClusterStatus
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.cluster import TopologyRequest, UsageRequest, WatchRequest
from tfcluster.protocol.api.logs import LogsRequest
from tfcluster.protocol.api.runs import RunsRequest


class LiveCluster:
    """Follows a cluster until it is closed.

    Args:
        snapshot: The present state of the cluster; None if that is not known, and it may be down.
        changed: Called from another thread after each change; it must return at once.
    """

    def __init__(self, cluster: Cluster, snapshot: ClusterSnapshot | None, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._changed = changed
        self._threads = StreamThreads()
        self._lock = threading.Lock()  # of the hosts that are followed
        self._stops: dict[str, threading.Event] = {}
        self._is_measured = threading.Event()
        self.hosts = LiveHosts(cluster, snapshot)
        self.runs = LiveRuns(lambda: self._cluster, self._threads, changed)
        self.events = LiveEvents(lambda: self._cluster, self._threads, self.hosts.is_down, changed)

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
        self._threads.stop()
        with self._lock:
            for stopped in self._stops.values():
                stopped.set()
        self._is_measured.set()

    def view(self) -> LiveView:
        """Return what is known of the cluster now."""
        down = self.hosts.find_failure()  # first: with it, no task is shown that runs
        status, links, rates = self.hosts.status(), self.hosts.links(), self.hosts.rates()
        return LiveView(status, links, rates, self.runs.view(), self.events.latest(), down)

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

        self._threads.start(host, read, stopped)
        return stopped.set

    def _follow_host(self, host: str) -> None:
        stopped = self._stops[host] = threading.Event()
        # The link is back when the next status arrives.
        self._threads.start(host, partial(self._watch, host), stopped, partial(self._lose, host))
        self._threads.start(host, partial(self._measure, host), stopped)
        self.events.follow(host, stopped)

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
                for name in added:
                    self._follow_host(name)

    def _take_runs(self, host: str, *, start: bool) -> None:
        request = RunsRequest(settings.LIVE_RUNS)
        self.runs.take_records(host, self._cluster.connect(host).call(request, start=start).runs)

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
