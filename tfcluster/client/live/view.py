"""A cluster at one moment, as views show it that follow it: its status, what its tasks use now, links, runs, events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfcluster.client.logs import Line
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.core.status import ClusterStatus, HostLoad
from tfcluster.core.usage import ProcessUsage
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.runs import RunSummary


@dataclass(frozen=True)
class Link:
    """Whether the agent of a host answers."""

    lost_at: float | None = None  # the Unix time since which it does not; None if it does
    reason: str = ""  # why it does not


@dataclass(frozen=True)
class TaskRates:
    """What a task uses now: between the last two measurements."""

    cpu_percent: float
    received_per_s: float | None
    sent_per_s: float | None


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

    status: ClusterStatus  # as `status -o json` has it, with the hosts' load and the tasks' traffic
    links: Mapping[str, Link]
    rates: Mapping[str, TaskRates]
    runs: tuple[LiveRun, ...]  # the oldest first
    events: tuple[Line, ...]  # the latest ones, the oldest first
    down: ClusterError | None = None  # the error that the cluster is down on all hosts


def rates_between(earlier: ProcessUsage, now: ProcessUsage, seconds: float) -> TaskRates:
    """Return what a task used between two measurements, which may be of different processes of the task."""
    received = sent = None
    if earlier.traffic is not None and now.traffic is not None:
        received = max(0.0, (now.traffic.received_bytes - earlier.traffic.received_bytes) / seconds)
        sent = max(0.0, (now.traffic.sent_bytes - earlier.traffic.sent_bytes) / seconds)
    percent = 100.0 * max(0.0, now.cpu_seconds - earlier.cpu_seconds) / seconds
    return TaskRates(round(percent, 1), received, sent)
