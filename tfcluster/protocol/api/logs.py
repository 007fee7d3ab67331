"""The methods of an agent that read and follow log files.

The response begins with the start position of each log, and each line comes with the position after it. With the
positions, a command whose agent died resumes at the next agent without losing or repeating a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.core.log_levels import LogLevel
from tfcluster.protocol.api import Done, Method, Request

#: In a request for logs, the agent's own log. No task, job or run has such a name.
AGENT_LOG = ":agent"


@dataclass(frozen=True)
class LogPositions:
    """The first event of both methods, and one after each part of the logs of which something is hidden.

    Attributes:
        after: The position in each log at which the response starts or continues: an offset in bytes, by log. A log
            whose last matching lines have to be found first is left out.
        hidden: How many entries of TensorFlow before it are below the level of the request, since the latest event.
    """

    after: dict[str, int]
    hidden: int = 0


@dataclass(frozen=True)
class LogLine:
    """A line of a log, as `logs -o json` has it.

    Attributes:
        task: The task's short name, or the run's id.
        time: The Unix time in seconds at which the line was written.
        line: The text without its newline.
        member: The short name of the task whose member of a group has printed it; None if it is of no group.
    """

    task: str
    time: float
    line: str
    member: str | None


@dataclass(frozen=True)
class LogEvent:
    """A line of a log with its position.

    Attributes:
        log: The log: the task's short name, or the run's id.
        next: The position after the line.
        line: The line.
    """

    log: str
    next: int
    line: LogLine


@dataclass(frozen=True)
class LogsRequest(Request[LogEvent | LogPositions, Done], method=Method.LOGS):
    """Send lines of the logs of tasks and runs, merged by time.

    Attributes:
        tasks: Names of tasks, jobs and runs; empty for all tasks on the host.
        lines: How many of the last lines of each log to send; None for all.
        since: Send only lines that were written at or after this Unix time, in seconds. None for all of a run, and
            for all of a task since the cluster was started: an earlier cluster of the same name has written before.
        follow: Whether to wait for new lines until the agent shuts down.
        after: The start position of each log as given in an earlier response; overrides `lines` and `since`.
        until: Send only lines that were written at or before this Unix time, in seconds; None for no such limit.
        grep: Regular expressions; only lines that at least one of them matches are sent, and count for `lines`. Empty
            for all lines.
        level: Of what TensorFlow itself logs, only entries from this level on are sent, and count for `lines`; None
            for all.
    """

    tasks: tuple[str, ...]
    lines: int | None
    since: float | None
    follow: bool
    after: dict[str, int]
    until: float | None = None
    grep: tuple[str, ...] = ()
    level: LogLevel | None = None


@dataclass(frozen=True)
class ClusterEvent:
    """What happened to a cluster, as `events -o json` has it.

    Attributes:
        time: The Unix time of the event, in seconds.
        event: The kind of event.
        task: The short name of the task that the event is about; None if it is about the cluster.
        detail: More about it, for the user.
    """

    time: float
    event: str
    task: str | None
    detail: str


@dataclass(frozen=True)
class EventEvent:
    """An event of the cluster with its position.

    Attributes:
        log: Always empty: there is one log of events.
        next: The position after the event.
        line: The event.
    """

    log: str
    next: int
    line: ClusterEvent


@dataclass(frozen=True)
class EventsRequest(Request[EventEvent | LogPositions, Done], method=Method.EVENTS):
    """Send the events of the cluster.

    Attributes:
        lines: How many of the last events to send; None for all.
        since: Send only events at or after this Unix time, in seconds; None for all.
        follow: As for `LogsRequest`.
        after: As for `LogsRequest`.
        until: As for `LogsRequest`.
    """

    lines: int | None
    since: float | None
    follow: bool
    after: dict[str, int]
    until: float | None = None
