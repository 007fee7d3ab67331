"""A cluster at one moment, as views show it that follow it: its status, what its tasks use now, links, runs, events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster.client.logs import Line
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.core.status import ClusterStatus, HostLoad
from tfcluster.core.usage import ProcessUsage
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.runs import RunSummary


@dataclass(frozen=True)
class Link:
    """Whether the agent of a host answers.

    Attributes:
        lost_at: The Unix time since which it does not; None if it does.
        reason: Why it does not.
    """

    lost_at: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class TaskRates:
    """What a task uses now: between the last two measurements."""

    cpu_percent: float
    received_per_s: float | None
    sent_per_s: float | None


@dataclass(frozen=True)
class LoadSample:
    """What was used at one moment.

    Attributes:
        time: The Unix time.
        tasks: Processor time in percent of one processor, and memory in bytes, by task.
        hosts: The load of each host; None if it is not known.
    """

    time: float
    tasks: Mapping[str, tuple[float | None, int | None]]
    hosts: Mapping[str, HostLoad | None]


@dataclass(frozen=True)
class LiveRun:
    """A run, and what it has reported.

    Attributes:
        host: The host that leads it.
        record: Its record, whose `seconds` are of when it was read.
        progress: Its latest event `progress` (`done`, `total`, `unit`, `seconds`); None if there was none.
        metric: Its latest event `metric`; None if there was none.
        wait: Its event `waiting` while it waits for tasks; None otherwise.
    """

    host: str
    record: RunSummary
    progress: Mapping[str, Any] | None = None
    metric: Mapping[str, Any] | None = None
    wait: Mapping[str, Any] | None = None

    @property
    def is_active(self) -> bool:
        """Return whether it has not ended."""
        return self.record.state in ACTIVE_RUN_STATES


@dataclass(frozen=True)
class LiveView:
    """A cluster at one moment; see `tfcluster.client.live.live_cluster`.

    Attributes:
        status: The status as `status -o json` has it, with the hosts' load and the tasks' traffic.
        links: Whether the agent of each host answers.
        rates: What the tasks use, by their names.
        runs: The runs, the oldest first.
        events: The latest events, the oldest first.
        down: The error that the cluster is down on all hosts; None if it is not.
    """

    status: ClusterStatus
    links: Mapping[str, Link]
    rates: Mapping[str, TaskRates]
    runs: tuple[LiveRun, ...]
    events: tuple[Line, ...]
    down: ClusterError | None = None


def rates_between(earlier: ProcessUsage, now: ProcessUsage, seconds: float) -> TaskRates:
    """Return what a task used between two measurements.

    Args:
        earlier: The first one.
        now: The second one, of the same task, but perhaps of another process.
        seconds: The time between them.
    """
    received = sent = None
    if earlier.traffic is not None and now.traffic is not None:
        received = max(0.0, (now.traffic.received_bytes - earlier.traffic.received_bytes) / seconds)
        sent = max(0.0, (now.traffic.sent_bytes - earlier.traffic.sent_bytes) / seconds)
    percent = 100.0 * max(0.0, now.cpu_seconds - earlier.cpu_seconds) / seconds
    return TaskRates(round(percent, 1), received, sent)
