"""A cluster that is followed at one moment, as views show it; and what is known of its hosts: status, links, usage."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import Line
from tfcluster.client.status import ClusterSnapshot
from tfcluster.core.states import ACTIVE_RUN_STATES, ClusterState, HostState
from tfcluster.core.status import ClusterStatus, HostLoad, HostStatus, HostUnavailable, TaskStatus, aggregate_status
from tfcluster.core.topology import ClusterTopology
from tfcluster.core.usage import HostUsage, with_usage
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.transport.errors import not_running


@dataclass(frozen=True)
class Link:
    """Whether the agent of a host answers."""

    lost_at: float | None = None  # the Unix time since which it does not; None if it does
    reason: str = ""  # why it does not


@dataclass(frozen=True)
class LoadSample:
    """What was used at one moment."""

    time: float  # Unix time
    tasks: Mapping[str, tuple[float | None, int | None]]  # percent of one processor, bytes of memory
    hosts: Mapping[str, HostLoad | None]  # None if the load is not known


@dataclass(frozen=True)
class LiveRun:
    """A run, and what it has reported."""

    host: str  # the host that leads the run
    record: RunSummary  # its `seconds` are of when it was read
    progress: Mapping[str, Any] | None = None  # the latest event `progress` (`done`, `total`, `unit`, `seconds`)
    metrics: Mapping[str, float | None] = field(default_factory=dict)  # the latest value of each
    step: int | None = None  # the latest step of a metric
    wait: Mapping[str, Any] | None = None  # the event `waiting` while the run waits for tasks

    @property
    def is_active(self) -> bool:
        """Return whether it has not ended."""
        return self.record.state in ACTIVE_RUN_STATES


@dataclass(frozen=True)
class LiveView:
    """A cluster at one moment; see `tfcluster.client.live.live_cluster`."""

    status: ClusterStatus  # as `status -o json` has it, with the hosts' load
    links: Mapping[str, Link]
    runs: tuple[LiveRun, ...]  # the oldest first
    events: tuple[Line, ...]  # the latest ones, the oldest first
    down: ClusterError | None = None  # the error that the cluster is down on all hosts


@dataclass
class _HostState:
    """What is known of a host."""

    report: ClusterStatus | HostUnavailable = HostState.UNREACHABLE  # the latest status, or why there is none
    at: float = 0.0  # when `report` arrived, in monotonic seconds
    link: Link = field(default_factory=Link)
    last: ClusterStatus | None = None  # the latest status, also while there is none
    usage: HostUsage | None = None  # the latest measurement; None if there was none lately
    usage_at: float = 0.0  # in monotonic seconds

    @property
    def is_known(self) -> bool:
        """Return whether anything is known of it."""
        return self.report is not HostState.UNREACHABLE or self.link.lost_at is not None


class LiveHosts:
    """Collects what the agents say. Thread-safe.

    The snapshot is the present state of the cluster; None if that is not known yet.
    """

    def __init__(self, cluster: Cluster, snapshot: ClusterSnapshot | None) -> None:
        self._name = cluster.name
        self._lock = threading.RLock()
        self._topology = snapshot.topology if snapshot is not None else None
        self._accepts_any_topology = snapshot is None
        self._hosts = {name: _HostState() for name in cluster.hosts}
        self._cpu_percents: dict[str, float] = {}  # of each task between the last two measurements, by its name
        self._samples: deque[LoadSample] = deque(maxlen=settings.LIVE_SAMPLES)
        self._sample_count = 0
        self._version = 0
        self._was_up = False
        if snapshot is not None:
            for host in snapshot.status.hosts:
                self._hosts[host.host] = _HostState(HostState.DOWN)
            for name, status in snapshot.statuses.items():
                self.take_status(name, status)
            for name, error in snapshot.errors.items():
                self.lose(name, error.message, is_remote=True)

    def _state_of(self, host: str) -> _HostState:
        """Return what is known of a host; a new state that is not kept if it has left the cluster meanwhile."""
        return self._hosts.get(host) or _HostState()

    def counts(self) -> tuple[int, int]:
        """Return how often the status has changed, 0 while nothing can be shown, and how many samples there were."""
        with self._lock:
            is_known = self._topology is not None or all(host.is_known for host in self._hosts.values())
            return self._version if is_known else 0, self._sample_count

    def status(self) -> ClusterStatus:
        """Return the status of the cluster now: uptimes and loads are those of now, and not of the latest report."""
        with self._lock:
            reports = {name: self._refresh(host) for name, host in self._hosts.items()}
            if self._topology is None:
                states = {
                    name: HostState.UP if isinstance(host.report, ClusterStatus) else host.report
                    for name, host in self._hosts.items()
                }
                hosts = tuple(HostStatus(name, state, None, None) for name, state in states.items())
                return ClusterStatus(self._name, ClusterState.STOPPED, "", hosts, (), ())
            status = aggregate_status(self._topology, reports)
            status = replace(status, tasks=tuple(self._complete(task) for task in status.tasks))
            usages = {name: host.usage for name, host in self._hosts.items() if host.usage and not host.link.lost_at}
            return with_usage(status, usages)

    def _refresh(self, host: _HostState) -> ClusterStatus | HostUnavailable:
        """Return a host's status as it is now: the latest report is from the last change."""
        if not isinstance(host.report, ClusterStatus):
            return host.report
        age = time.monotonic() - host.at
        tasks = tuple(self._refresh_task(task, host.usage, age) for task in host.report.tasks)
        runs = tuple(
            replace(run, seconds=run.seconds + age) if run.state in ACTIVE_RUN_STATES else run
            for run in host.report.runs
        )
        return replace(host.report, tasks=tasks, runs=runs)

    def _refresh_task(self, task: TaskStatus, of_host: HostUsage | None, age: float) -> TaskStatus:
        if task.uptime_s is None:
            return task
        usage = of_host and of_host.tasks.get(task.task)
        return replace(
            task,
            uptime_s=task.uptime_s + age,
            rss_bytes=usage.rss_bytes if usage else task.rss_bytes,
            cpu_percent=self._cpu_percents.get(task.task, task.cpu_percent),
        )

    def _complete(self, task: TaskStatus) -> TaskStatus:
        """Return the status of a task with what was last known of it, if its host has no status."""
        host = self._hosts.get(task.host)
        if host is None or isinstance(host.report, ClusterStatus) or host.last is None:
            return task
        known = next((each for each in host.last.tasks if each.task == task.task), task)
        return replace(task, restarts=known.restarts, last_exit=known.last_exit)

    def links(self) -> dict[str, Link]:
        """Return whether the agent of each host answers."""
        with self._lock:
            return {name: host.link for name, host in self._hosts.items()}

    def samples_between(self, first: int, last: int) -> list[LoadSample]:
        """Return those of the latest samples that were taken after `first` others and up to `last`, oldest first."""
        with self._lock:
            dropped = self._sample_count - len(self._samples)
            return list(self._samples)[max(0, first - dropped) : last - dropped]

    def is_lost(self, host: str) -> bool:
        """Return whether the agent of a host does not answer."""
        with self._lock:
            return self._state_of(host).link.lost_at is not None

    def is_down(self, host: str) -> bool:
        """Return whether the cluster is down on a host."""
        with self._lock:
            return self._state_of(host).report is HostState.DOWN

    def find_failure(self) -> ClusterError | None:
        """Return the error that the cluster is down on all hosts; None if it is not."""
        with self._lock:
            if any(host.report is not HostState.DOWN for host in self._hosts.values()):
                return None
            if not self._was_up:
                return not_running(self._name)
        message, hint = f"cluster {self._name!r} went down", "`tfcluster up` starts it again."
        return ClusterError(message, hint=hint, exit_code=ExitCode.NOT_RUNNING)

    def take_status(self, host: str, status: ClusterStatus) -> None:
        """Take in the status of a host."""
        with self._lock:
            state = self._state_of(host)
            state.report = state.last = status
            state.at, state.link = time.monotonic(), Link()
            self._was_up = True
            self._version += 1

    def lacks_topology(self, host: str) -> bool:
        """Return whether the tasks of a host are not those of the topology that is known."""
        with self._lock:
            report = self._state_of(host).report
            if self._topology is None or self._accepts_any_topology or not isinstance(report, ClusterStatus):
                return True
            return {task.task for task in report.tasks} != {task.name for task in self._topology.on(host)}

    def take_topology(self, topology: ClusterTopology) -> tuple[list[str], list[str]]:
        """Take in a topology, unless it is older than the known one; return the hosts that were added and removed."""
        with self._lock:
            known = self._topology
            if known is not None and not self._accepts_any_topology and topology.generation < known.generation:
                return [], []
            self._topology, self._accepts_any_topology = topology, False
            names = [each.name for each in topology.hosts]
            added = [name for name in names if name not in self._hosts]
            removed = [name for name in self._hosts if name not in names]
            self._hosts = {name: self._state_of(name) for name in names}
            self._version += 1
            return added, removed

    def lose(self, host: str, reason: str, *, is_remote: bool) -> None:
        """Note that the agent of a host does not answer; the tasks of a remote host then cannot be seen."""
        with self._lock:
            state = self._state_of(host)
            if is_remote:
                state.report = HostState.UNREACHABLE
            if state.link.lost_at is None:
                state.link = Link(time.time(), reason)
            self._version += 1

    def note_down(self, host: str) -> None:
        """Note that the cluster is down on a host; if none has a status any more, any topology may be the next."""
        with self._lock:
            state = self._state_of(host)
            state.report, state.link = HostState.DOWN, Link()
            self.forget_usage(host)
            self._accepts_any_topology |= not any(
                isinstance(each.report, ClusterStatus) for each in self._hosts.values()
            )
            self._version += 1

    def take_usage(self, host: str, usage: HostUsage) -> None:
        """Take in what a host and its tasks use."""
        with self._lock:
            state, now = self._state_of(host), time.monotonic()
            earlier, seconds = state.usage, now - state.usage_at
            self.forget_usage(host)  # with that of tasks that have ended
            if earlier is not None and seconds > 0:
                for name in earlier.tasks.keys() & usage.tasks:
                    used = max(0.0, usage.tasks[name].cpu_seconds - earlier.tasks[name].cpu_seconds)
                    self._cpu_percents[name] = round(100.0 * used / seconds, 1)
            state.usage, state.usage_at = usage, now
            self._version += 1
            self._take_sample()

    def forget_usage(self, host: str) -> None:
        """Forget the last measurement, which does not say what is used now."""
        with self._lock:
            state = self._state_of(host)
            if state.usage is not None:
                for name in state.usage.tasks:
                    self._cpu_percents.pop(name, None)
            state.usage = None

    def _take_sample(self) -> None:
        """Keep the loads of all hosts, once in each interval."""
        now = time.time()
        if self._samples and now - self._samples[-1].time < settings.LIVE_USAGE_SECONDS / 2:
            return
        status = self.status()
        tasks = {task.task: (task.cpu_percent, task.rss_bytes) for task in status.tasks}
        self._samples.append(LoadSample(now, tasks, {host.host: host.load for host in status.hosts}))
        self._sample_count += 1
