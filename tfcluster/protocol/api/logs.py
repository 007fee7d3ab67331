"""The methods of an agent that read and follow log files.

The response begins with the start position of each log, and each line comes with the position after it. With the
positions, a command whose agent died resumes at the next agent without losing or repeating a line.
"""

from __future__ import annotations

from tfcluster.core.log_levels import LogLevel
from tfcluster.protocol.api import Done, Request
from tfcluster.records import record_class

#: In a request for logs, the agent's own log. No task, job or run has such a name.
AGENT_LOG = ":agent"


@record_class(frozen=True)
class LogPositions:
    """The first event of both methods, and one after each part of the logs of which something is hidden."""

    # The position in each log at which the response starts or continues: an offset in bytes, by log. A log whose last
    # matching lines have to be found first is left out.
    after: dict[str, int]
    # How many entries of TensorFlow before it are below the level of the request, since the latest event.
    hidden: int = 0


@record_class(frozen=True)
class LogLine:
    """A line of a log, as `logs -o json` has it."""

    task: str  # the task's short name, or the run's id
    time: float  # the Unix time in seconds at which the line was written
    line: str  # the text without its newline
    member: str | None  # the short name of the task whose member of a group has printed it; None if it is of no group


@record_class(frozen=True)
class LogEvent:
    """A line of a log with its position."""

    log: str  # the log: the task's short name, or the run's id
    next: int  # the position after the line
    line: LogLine  # the line


@record_class(frozen=True)
class LogsRequest(Request[LogEvent | LogPositions, Done], method="logs"):
    """Send lines of the logs of tasks and runs, merged by time."""

    tasks: tuple[str, ...]  # names of tasks, jobs and runs; empty for all tasks on the host
    lines: int | None  # how many of the last lines of each log to send; None for all
    # Send only lines that were written at or after this Unix time, in seconds. None for all of a run, and for all of a
    # task since the cluster was started: an earlier cluster of the same name has written before.
    since: float | None
    follow: bool  # whether to wait for new lines until the agent shuts down
    # The start position of each log as given in an earlier response; overrides `lines` and `since`.
    after: dict[str, int]
    # Send only lines that were written at or before this Unix time, in seconds; None for no such limit.
    until: float | None = None
    # Regular expressions; only lines that at least one of them matches are sent, and count for `lines`. Empty for all
    # lines.
    grep: tuple[str, ...] = ()
    # Of what TensorFlow itself logs, only entries from this level on are sent, and count for `lines`; None for all.
    level: LogLevel | None = None


@record_class(frozen=True)
class ClusterEvent:
    """What happened to a cluster, as `events -o json` has it."""

    time: float  # the Unix time of the event, in seconds
    event: str  # the kind of event
    task: str | None  # the short name of the task that the event is about; None if it is about the cluster
    detail: str  # more about it, for the user


@record_class(frozen=True)
class EventEvent:
    """An event of the cluster with its position."""

    log: str  # always empty: there is one log of events
    next: int  # the position after the event
    line: ClusterEvent  # the event


@record_class(frozen=True)
class EventsRequest(Request[EventEvent | LogPositions, Done], method="events"):
    """Send the events of the cluster."""

    lines: int | None  # how many of the last events to send; None for all
    since: float | None  # send only events at or after this Unix time, in seconds; None for all
    follow: bool  # as for `LogsRequest`
    after: dict[str, int]  # as for `LogsRequest`
    until: float | None = None  # as for `LogsRequest`
