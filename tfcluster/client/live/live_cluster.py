"""Follow a cluster: what `top`, the page and `status --watch` show, asked for once a second while a view is open.

`LiveCluster` has a thread for each host, which asks its agent for what has changed. So a host that does not answer
delays no other one; its link says since when and why, and it is asked again until it is back. A cluster that is down is
looked for until it is up again.

    live = LiveCluster(cluster)
    live.start()
    view = live.view()  # a `LiveView`: values that do not change any more, and that any thread may read
    version = live.wait(version, 10.0)  # returns when there is something new
    live.close()
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.view import HostView, LiveView
from tfcluster.client.logs import Line, read_host
from tfcluster.client.rpc.parallel import StreamStoppedError, silent_context
from tfcluster.client.runs.wait_diagnosis import ask_hosts
from tfcluster.client.status import ClusterSnapshot, with_job
from tfcluster.core.log_levels import LogLevel
from tfcluster.core.states import ClusterState, HostState
from tfcluster.core.status import ClusterStatus, HostStatus, aggregate_status
from tfcluster.core.topology import ClusterTopology
from tfcluster.core.usage import with_usage
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.api.logs import EventsRequest, LogsRequest
from tfcluster.protocol.api.runs import RunsRequest
from tfcluster.protocol.api.view import RunReport, ViewReply, ViewRequest
from tfcluster.protocol.serialization import to_json
from tfcluster.transport.errors import not_running


class LiveCluster:
    """Follows a cluster until it is closed. Thread-safe.

    Args:
        snapshot: The present state of the cluster; None if that is not known, and it may be down.
        timeout: The seconds that a host has to answer; None for the default.
    """

    def __init__(self, cluster: Cluster, snapshot: ClusterSnapshot | None = None, timeout: float | None = None) -> None:
        self._cluster = cluster
        self._timeout = settings.LIVE_TIMEOUT_SECONDS if timeout is None else timeout
        self._changed = threading.Condition(threading.RLock())  # of all that follows
        self._hosts = {name: HostView() for name in cluster.hosts}
        self._stops: dict[str, threading.Event] = {}
        self._topology: ClusterTopology | None = None
        self._accepts_any_topology = True
        self._version = 0
        self._was_up = False
        self._looked_at = time.monotonic()
        self._resumed_at = 0.0  # when somebody looked again after some time; 0 for never
        if snapshot is not None:
            self._use(snapshot)

    def _use(self, snapshot: ClusterSnapshot) -> None:
        self._topology, self._accepts_any_topology, self._was_up = snapshot.topology, False, True
        self._cluster = self._cluster.with_hosts_of(snapshot.topology)  # with those that are down
        self._hosts = {host.host: HostView(HostState.DOWN) for host in snapshot.status.hosts}
        for name, status in snapshot.statuses.items():
            self._hosts[name] = HostView(HostState.UP, status=status, at=time.monotonic())
        for name, error in snapshot.errors.items():
            self._hosts[name].lose(error.message, is_remote=True)
        self._version += 1

    def start(self) -> None:
        """Start to ask all hosts."""
        with self._changed:
            for host in self._hosts:
                self._start_asking(host)

    def close(self) -> None:
        """End all threads; they notice it in a moment, and nothing waits for them."""
        with self._changed:
            for stopped in self._stops.values():
                stopped.set()
            self._changed.notify_all()

    @property
    def cluster(self) -> Cluster:
        """The cluster, with the hosts that it has now."""
        return self._cluster

    @property
    def version(self) -> int:
        """How often the view has changed; 0 as long as nothing can be shown."""
        is_up = any(host.state in (None, HostState.UP) for host in self._hosts.values())  # its topology comes next
        return self._version if self._topology is not None or not is_up else 0

    def look(self) -> None:
        """Note that somebody looks, so that the hosts are asked."""
        with self._changed:
            was_looked_at = self._is_looked_at()
            self._looked_at = time.monotonic()
            if not was_looked_at:  # the view is old: ask for all parts
                self._resumed_at = self._looked_at
                for host in self._hosts.values():
                    host.versions, host.usage = {}, None
                self._note_change()

    def wait_until_asked(self, timeout: float) -> None:
        """Wait until all hosts have been asked since somebody looks, but no longer than `timeout` seconds."""
        with self._changed:
            since = self._resumed_at
            self._changed.wait_for(lambda: all(host.asked_at > since for host in self._hosts.values()), timeout)

    def _is_looked_at(self) -> bool:
        return time.monotonic() - self._looked_at < settings.LIVE_LOOK_SECONDS

    def wait(self, version: int, timeout: float) -> int:
        """Wait until the view has another version, but no longer than `timeout` seconds; return its version."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != version, timeout)
            return self.version

    def view(self) -> LiveView:
        """Return what is known of the cluster now."""
        self.look()
        with self._changed:
            links = {name: host.current_link(self._resumed_at) for name, host in self._hosts.items()}
            runs = itertools.chain.from_iterable(host.live_runs(name) for name, host in self._hosts.items())
            events = itertools.chain.from_iterable(host.events for host in self._hosts.values())
            return LiveView(
                self._status(),
                links,
                tuple(sorted(runs, key=lambda run: run.record.started)),
                tuple(sorted(events, key=lambda event: float(event["time"]))[-settings.LIVE_EVENTS :]),
                self._find_failure(),
                self._topology is None or self._topology.has_servers,
            )

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

        def read() -> None:
            with contextlib.suppress(StreamStoppedError, ClusterError):
                for line in read_host(
                    self._cluster.connect(host), request, {}, on_hidden, silent_context(host, stopped)
                ):
                    show(line)

        threading.Thread(target=read, daemon=True).start()
        return stopped.set

    def _status(self) -> ClusterStatus:
        """Return the status of the cluster now: uptimes are those of now, and not of the latest reply."""
        if self._topology is None:
            states = {name: host.state or HostState.UNREACHABLE for name, host in self._hosts.items()}
            hosts = tuple(HostStatus(name, state, None, None) for name, state in states.items())
            return ClusterStatus(self._cluster.name, ClusterState.STOPPED, "", hosts, (), ())
        status = aggregate_status(self._topology, {name: host.report() for name, host in self._hosts.items()})
        tasks = tuple(
            self._hosts[task.host].complete(task) if task.host in self._hosts else task for task in status.tasks
        )
        usages = {name: host.usage for name, host in self._hosts.items() if host.usage and host.link.lost_at is None}
        return with_usage(with_job(replace(status, tasks=tasks), self._cluster), usages)

    def _find_failure(self) -> ClusterError | None:
        """Return the error that the cluster is down on all hosts; None if it is not."""
        if any(host.state is not HostState.DOWN for host in self._hosts.values()):
            return None
        if not self._was_up:
            return not_running(self._cluster.name)
        message, hint = f"cluster {self._cluster.name!r} went down", "`tfcluster up` starts it again."
        return ClusterError(message, hint=hint, exit_code=ExitCode.NOT_RUNNING)

    def _start_asking(self, host: str) -> None:
        stopped = self._stops[host] = threading.Event()
        name, arguments = f"view of {host}", (host, stopped)
        threading.Thread(target=self._ask_repeatedly, name=name, args=arguments, daemon=True).start()

    def _ask_repeatedly(self, host: str, stopped: threading.Event) -> None:
        """Ask a host once a second while somebody looks, until the host is no longer followed."""
        while not stopped.is_set():
            seconds = settings.LIVE_POLL_SECONDS
            try:
                self._ask(host, stopped)
            except ClusterError as error:
                if error.exit_code is ExitCode.NOT_RUNNING:
                    seconds = settings.LIVE_RETRY_SECONDS
                    self._note_down(host, stopped)
                else:
                    self._lose(host, error.message, stopped)
            except Exception as error:  # shown, and the next answer may be another one
                self._lose(host, f"this is a bug in tfcluster: {type(error).__name__}: {error}", stopped)
            stopped.wait(seconds)
            with self._changed:
                lease = self._topology.lease if self._topology is not None else None  # this command keeps it alive
                longest = None if lease is None else lease / settings.LEASE_RENEWALS
                self._changed.wait_for(lambda: stopped.is_set() or self._is_looked_at(), longest)

    def _ask(self, host: str, stopped: threading.Event) -> None:
        """Ask a host for what has changed, and for the topology if that is another one."""
        with self._changed:
            state, client = self._hosts.get(host) or HostView(), self._cluster.connect(host)
        reply = client.call(ViewRequest(state.versions, state.after), timeout=self._timeout)
        reply = self._explain_waits(host, state, reply)
        events = [self._cluster.add_host(to_json(event), host) for event in reply.events]
        with self._changed:
            if stopped.is_set():
                return
            self._was_up = True
            state.asked_at = time.monotonic()
            # Down and up again since the last question: the numbers of topologies have begun again.
            self._accepts_any_topology |= state.is_of_earlier_cluster(reply)
            if state.take(reply, events):
                self._note_change()
            is_later = self._topology is None or reply.generation > self._topology.generation
            if not (is_later or self._accepts_any_topology):
                return
        self._take_topology(client.call(TopologyRequest(), timeout=self._timeout))

    def _explain_waits(self, host: str, state: HostView, reply: ViewReply) -> ViewReply:
        """Return a reply in which the other hosts too say what they know of the tasks that runs wait for."""
        if reply.reports is None or len(self._cluster.hosts) < 2:
            return reply
        explained = {report.run: self._explain(host, state, report) for report in reply.reports if report.wait}
        state.explained = explained
        reports = (
            replace(report, wait=explained[report.run][1]) if report.wait else report for report in reply.reports
        )
        return replace(reply, reports=tuple(reports))

    def _explain(self, host: str, state: HostView, report: RunReport) -> tuple[Any, Any, float]:
        """Return what a run waits for, as its host says it; as all hosts do; and when they were asked."""
        known = state.explained.get(report.run)
        if known is not None and known[0] == report.wait and time.monotonic() - known[2] < settings.LIVE_WAIT_SECONDS:
            return known
        assert report.wait is not None
        return report.wait, ask_hosts(self._cluster.led_by(host), report.wait), time.monotonic()

    def _take_topology(self, topology: ClusterTopology) -> None:
        """Take in a topology that has changed: ask the added hosts, and no longer the removed ones."""
        with self._changed:
            known = self._topology
            if known is not None and not self._accepts_any_topology and topology.generation < known.generation:
                return
            self._topology, self._accepts_any_topology = topology, False
            self._cluster = self._cluster.with_hosts_of(topology)
            names = [each.name for each in topology.hosts]
            for name in self._stops.keys() - {*names}:
                self._stops.pop(name).set()
            added = [name for name in names if name not in self._stops]
            self._hosts = {name: self._hosts.get(name) or HostView() for name in names}
            for name in added:
                self._start_asking(name)
            self._note_change()

    def _lose(self, host: str, reason: str, stopped: threading.Event) -> None:
        with self._changed:
            if stopped.is_set():
                return
            self._hosts[host].asked_at = time.monotonic()
            if self._hosts[host].lose(reason, is_remote=host != LOCAL_HOST):
                self._note_change()

    def _note_down(self, host: str, stopped: threading.Event) -> None:
        """Note that the cluster is down on a host; if it is down on all hosts, read how its runs have ended."""
        with self._changed:
            if stopped.is_set():
                return
            state = self._hosts[host]
            state.note_down()
            state.asked_at = time.monotonic()
            # Any topology may be the next.
            self._accepts_any_topology |= not any(each.state is HostState.UP for each in self._hosts.values())
            if state.times_down == 1:
                self._note_change()
            # `down` needs no agent that reads: leave it the time until the second look.
            is_over = state.times_down >= (2 if self._was_up else 1) and self._find_failure() is not None
        if is_over and not state.is_rest_read:
            with contextlib.suppress(ClusterError):
                self._read_rest(host, state)

    def _read_rest(self, host: str, state: HostView) -> None:
        """Read the runs and events of a host on which the cluster is down."""
        client, after = self._cluster.connect(host), {} if state.after is None else {"": state.after}
        state.is_rest_read = True
        if not client.transport.has_state():
            return
        runs = client.call(RunsRequest(settings.LIVE_RUNS), start=True).runs
        request = EventsRequest(settings.LIVE_EVENTS, None, False, {})
        events = list(read_host(client, request, after, None, silent_context(host)))
        with self._changed:
            state.runs, state.after = runs, after.get("")
            state.events += [self._cluster.add_host(event, host) for event in events]
            self._note_change()

    def _note_change(self) -> None:
        self._version += 1
        self._changed.notify_all()
