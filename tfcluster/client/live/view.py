"""A cluster at one moment, as `top`, the page and `status --watch` show it; and what is known of one of its hosts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfcluster import settings
from tfcluster.client.logs import Line
from tfcluster.core.states import ACTIVE_RUN_STATES, HostState
from tfcluster.core.status import ClusterStatus, HostUnavailable, TaskStatus
from tfcluster.core.usage import HostUsage
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.protocol.api.view import RunReport, ViewReply


@dataclass(frozen=True)
class Link:
    """Whether the agent of a host answers."""

    lost_at: float | None = None  # the Unix time since which it does not; None if it does
    reason: str = ""  # why it does not


@dataclass(frozen=True)
class LiveRun:
    """A run, and what it has reported."""

    host: str  # the host that leads the run
    record: RunSummary
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
    has_servers: bool = True  # False for the cluster of a launch


@dataclass
class HostView:
    """What is known of a host."""

    state: HostState | None = None  # None as long as nothing is known
    link: Link = field(default_factory=Link)
    status: ClusterStatus | None = None  # the latest one, even if the host is unreachable
    at: float = 0.0  # when `status` arrived, in monotonic seconds
    usage: HostUsage | None = None  # measured with `status`
    runs: tuple[RunSummary, ...] = ()
    reports: Mapping[str, RunReport] = field(default_factory=dict)  # of the active runs, by their ids
    events: deque[Line] = field(default_factory=lambda: deque(maxlen=settings.LIVE_EVENTS))
    explained: dict[str, tuple[Any, Any, float]] = field(default_factory=dict)  # see `LiveCluster._explain`
    versions: dict[str, str] = field(default_factory=dict)  # of the parts above, as the agent has sent them
    after: int | None = None  # the position after the latest event; None if there was none
    times_down: int = 0  # how often in a row it was found that the cluster is down there
    is_rest_read: bool = False  # whether its runs and events have been read since the cluster went down
    lost_at: float = 0.0  # when it was lost last, in monotonic seconds
    asked_at: float = 0.0  # when it has answered last, or has not, in monotonic seconds

    def is_of_earlier_cluster(self, reply: ViewReply) -> bool:
        """Return whether the reply is of a cluster that was started after the latest status."""
        return bool(reply.status and self.status and reply.status.started != self.status.started)

    def take(self, reply: ViewReply, events: Iterable[Line]) -> bool:
        """Take in a reply, and its events; return whether there is anything new."""
        events = list(events)
        is_new = self.state is not HostState.UP or self.link.lost_at is not None or bool(events)
        is_new |= reply.status is not None or reply.runs is not None or reply.reports is not None
        self.state, self.link, self.times_down, self.is_rest_read = HostState.UP, Link(), 0, False
        if reply.status is not None:
            self.status, self.usage, self.at = reply.status, reply.usage, time.monotonic()
        if reply.runs is not None:
            self.runs = reply.runs
        if reply.reports is not None:
            self.reports = {report.run: report for report in reply.reports}
        self.events += events
        self.versions, self.after = reply.versions, reply.after
        return is_new

    def current_link(self, since: float) -> Link:
        """Return whether the agent answers; not yet, if it has not been asked since a monotonic time."""
        is_old = self.state is not None and self.asked_at < since and self.link.lost_at is None
        return Link(time.time(), "it has not answered yet") if is_old else self.link

    def lose(self, reason: str, *, is_remote: bool) -> bool:
        """Note that the agent does not answer, and return whether that, or its reason, is new.

        The tasks of a remote host cannot be seen then.
        """
        link = self.link
        if is_remote or self.state is None:
            self.state = HostState.UNREACHABLE
        if link.lost_at is None:
            self.lost_at = time.monotonic()
        self.link = Link(link.lost_at or time.time(), reason)
        return self.link != link

    def note_down(self) -> None:
        """Note that the cluster is down there."""
        self.state, self.link, self.usage, self.reports, self.versions = HostState.DOWN, Link(), None, {}, {}
        self.times_down += 1

    def report(self) -> ClusterStatus | HostUnavailable:
        """Return the status as it is now, as the latest one is from the last change; or why there is none."""
        if self.state is HostState.DOWN:
            return HostState.DOWN
        if self.state is not HostState.UP or self.status is None:
            return HostState.UNREACHABLE
        age = (time.monotonic() if self.link.lost_at is None else self.lost_at) - self.at
        tasks = tuple(
            task if task.uptime_s is None else replace(task, uptime_s=task.uptime_s + age) for task in self.status.tasks
        )
        runs = tuple(
            replace(run, seconds=run.seconds + age) if run.state in ACTIVE_RUN_STATES else run
            for run in self.status.runs
        )
        return replace(self.status, tasks=tasks, runs=runs)

    def complete(self, task: TaskStatus) -> TaskStatus:
        """Return the status of a task with what was known of it last, if the host has no status now."""
        if self.state is HostState.UP or self.status is None:
            return task
        known = next((each for each in self.status.tasks if each.task == task.task), task)
        return replace(task, restarts=known.restarts, last_exit=known.last_exit)

    def live_runs(self, host: str) -> Iterator[LiveRun]:
        """Yield the runs that the host leads, with their reports."""
        for record in self.runs:
            report = self.reports.get(record.run) or RunReport(record.run)
            yield LiveRun(host, record, report.progress, report.metrics, report.step, report.wait)
