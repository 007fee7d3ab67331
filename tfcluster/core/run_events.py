"""The events of a run, as its file and `run -o json` have them: a JSON object with the kind as `event`, and the fields.

docs/events.md is generated from these classes: their docstrings, and the comments of their fields. A field whose
default is None is left out if it is None. Text may have bytes that are not UTF-8, which are escaped
(`surrogateescape`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from typing import Any, ClassVar, get_args

from tfcluster.records import record_class


@record_class(frozen=True)
class SubmittedEvent:
    """The first event: the run is recorded."""

    event: ClassVar = "run"
    run: str  # the run's id
    program: str  # its program; `script` for a script
    devices: list[str]  # the full names of the devices to compute on
    notes: list[str] | None = None  # for the user, about the choice of devices


@record_class(frozen=True)
class ImportingEvent:
    """TensorFlow is being imported on the host, which takes some seconds after `up`; the program starts after that."""

    event: ClassVar = "importing"


@record_class(frozen=True)
class ImportedEvent:
    """TensorFlow has been imported, and the program starts."""

    event: ClassVar = "imported"


@record_class(frozen=True)
class OutputEvent:
    """A part of a script's output; `run -o json` prints an event for each line, with `line` instead of `data`."""

    event: ClassVar = "output"
    stream: str  # `stdout` or `stderr`
    task: str | None = field(default=None, kw_only=True)  # the short name of the member's task, in a group
    data: str  # the text, as it arrived
    missing: int | None = None  # how many bytes are not stored; the text is then a line that says so


@record_class(frozen=True)
class ProgressEvent:
    """A program's report by `tfcluster.progress`."""

    event: ClassVar = "progress"
    done: int  # how much is done
    total: int  # how much there is to do
    unit: str  # the unit of both, in the plural, such as `samples`
    seconds: float  # since the run's program began


@record_class(frozen=True)
class MetricEvent:
    """A program's report by `tfcluster.metric`."""

    event: ClassVar = "metric"
    task: str | None = field(default=None, kw_only=True)  # the short name of the member's task, in a group
    series: str | None = field(default=None, kw_only=True)  # the series that the program gave, such as `worker:1`
    name: str  # what the value is, such as `loss`
    value: float | None  # null if it is not finite
    step: int  # the step that the program gave
    seconds: float  # since the program began


@record_class(frozen=True)
class GraphEvent:
    """The operations of a step's graph; `placement` events name their devices."""

    event: ClassVar = "graph"
    operations: list[Any]  # each as [name, type, inputs]


@record_class(frozen=True)
class PlacementEvent:
    """The device on which an operation is placed, as a step of the run says; with `--log-placement`."""

    event: ClassVar = "placement"
    op: str  # the name of the operation
    type: str  # its type, such as `MatMul`
    device: str  # the device's full name


@record_class(frozen=True)
class TaskDownEvent:
    """A task that the run can use has stopped answering."""

    event: ClassVar = "task_down"
    task: str  # the task's name
    problem: str  # what is wrong with it


@record_class(frozen=True)
class WaitingEvent:
    """A script waits in a call of TensorFlow, with the reason."""

    event: ClassVar = "waiting"
    call: str  # the call, such as `Session.run`
    file: str  # the script's file
    line: int | None  # the line in it
    function: str  # the function in which the call is
    seconds: float  # since the wait began
    message: str  # the explanation, as a note shows it
    problems: list[dict[str, Any]]  # each with `problem`, `hint`, `task` (its name) and `host`, which can be empty
    logs: dict[str, list[str]] | None = None  # the last lines of the tasks' logs, by the task's short name


@record_class(frozen=True)
class WaitingEndedEvent:
    """A script has continued after a wait that was shown."""

    event: ClassVar = "waiting_ended"
    call: str  # as in `waiting`
    file: str  # as in `waiting`
    line: int | None  # as in `waiting`
    function: str  # as in `waiting`
    seconds: float  # how long it waited


@record_class(frozen=True)
class InterruptEvent:
    """Python is inside TensorFlow, and has not handled Ctrl-C within a second; or it has handled it after all."""

    event: ClassVar = "interrupt"
    task: str | None = field(default=None, kw_only=True)  # the short name of the member's task, in a group
    is_handled: bool  # false after the first second, true if Python has handled it after all


@record_class(frozen=True)
class CoordinatorEvent:
    """The coordinator of a group waits for its other hosts; the command has them connect, and does not show it.

    In the part of the run on another host, that host has connected to the coordinator.
    """

    event: ClassVar = "coordinator"
    address: str
    hosts: list[str]


@record_class(frozen=True)
class MemberEvent:
    """A member of a group has started or exited."""

    event: ClassVar = "member"
    task: str  # its short name
    host: str  # the host on which it runs
    state: str  # `started` or `exited`
    attempt: int  # how often the group was restarted
    pid: int | None = None  # if it has started
    exit_code: int | None = None  # if it has exited; negative if a signal has ended it


@record_class(frozen=True)
class RestartEvent:
    """All members of a group are about to be restarted."""

    event: ClassVar = "restart"
    problem: str  # why
    seconds: float  # until the restart
    left: int  # how many restarts are left after it


@record_class(frozen=True)
class TrialEvent:
    """A trial of a sweep has started or ended."""

    event: ClassVar = "trial"
    trial: int  # its number, from 0
    parameters: dict[str, Any]  # by name
    state: str  # `running`, `succeeded`, `failed`, `cancelled`; `pending` if its host is lost: it starts again
    metrics: dict[str, Any]  # its latest ones, by name
    host: str  # the host on which it runs
    seconds: float  # since it was started
    attempt: int  # how often it was started before
    problem: str | None = None  # why it failed, or starts again


@record_class(frozen=True)
class ErrorEvent:
    """The program has failed, as its driver says; the result follows."""

    event: ClassVar = "error"
    error: dict[str, Any]  # `message`, `hint` (how to solve it) and `exit_code`
    result: dict[str, Any] | None = None  # as in `result`


@record_class(frozen=True)
class StoppedEvent:
    """The driver has stopped a script because the run was to end; the result, which says why, follows."""

    event: ClassVar = "stopped"
    result: dict[str, Any] | None  # the script's latest `metrics`; null if it has reported none


@record_class(frozen=True)
class ResultEvent:
    """The last event: the run has ended.

    The result of a script has its `exit_code`, its `signal` if one has ended it, its latest `metrics` if it has
    reported any (by task for a group, whose result has `restarts` too, and by series), and the `value` that it gave to
    `tfcluster.result`. The result of a bundled program is this value. The result of a sweep has `trials`, the best
    first, each with `trial`, `parameters`, `state`, `metrics`, `host` and `seconds`, as in `trial`.
    """

    event: ClassVar = "result"
    run: str  # the run's id
    program: str  # its program; `script` for a script
    state: str  # `succeeded`, `failed` or `cancelled`
    seconds: float  # how long the run took
    result: dict[str, Any] | None  # the program's result; null if it has none
    devices: dict[str, dict[str, int]]  # the work of each device, such as `{"shards": 12}`, by its name
    notes: list[str]  # for the user
    error: dict[str, Any] | None = None  # as in `error`; only if the run failed


RunEvent = (
    SubmittedEvent
    | ImportingEvent
    | ImportedEvent
    | OutputEvent
    | ProgressEvent
    | MetricEvent
    | GraphEvent
    | PlacementEvent
    | TaskDownEvent
    | WaitingEvent
    | WaitingEndedEvent
    | InterruptEvent
    | CoordinatorEvent
    | MemberEvent
    | RestartEvent
    | TrialEvent
    | ErrorEvent
    | StoppedEvent
    | ResultEvent
)
_KINDS: dict[str, Any] = {kind.event: kind for kind in get_args(RunEvent)}


def to_record(event: RunEvent) -> dict[str, Any]:
    """Return an event as JSON values."""
    values = {each.name: (getattr(event, each.name), each.default) for each in fields(event)}
    present = {name: value for name, (value, default) in values.items() if value is not None or default is not None}
    return {"event": event.event, **present}


def parse_event(record: Mapping[str, Any]) -> RunEvent | None:
    """Return the event that a program's or a run's file has; None if it is of another kind, or has other fields."""
    kind = _KINDS.get(record["event"])
    if kind is None:
        return None
    try:
        return kind(**{each.name: record[each.name] for each in fields(kind) if each.name in record})  # type: ignore[no-any-return]
    except TypeError:  # it is of another version
        return None


def is_report(record: Mapping[str, Any]) -> bool:
    """Return whether an event is a whole one of `tfcluster.metric`; a file or a host may have others."""
    is_metric = record["event"] == MetricEvent.event and isinstance(record.get("name"), str)
    return is_metric and isinstance(record.get("value", ""), (int, float, type(None)))


def reporter_of(record: Mapping[str, Any]) -> str:
    """Return who has reported a metric: a member of a group, a series of the program, or both; empty for neither."""
    return " ".join(str(record[name]) for name in ("task", "series") if record.get(name))


def trial_metric(record: Mapping[str, Any]) -> str:
    """Return how a metric of a trial is named, after its series if it has one: `loss` or `validation/loss`."""
    return "/".join(filter(None, (record.get("series"), record["name"])))


class LatestMetrics:
    """Keeps the latest value of each metric that the processes of a run have reported.

    `tasks` are those of a group's members, in the order of the result; none for a run of one process.
    """

    def __init__(self, tasks: Iterable[str] = ()) -> None:
        self._values: dict[str, dict[str, float | None]] = {reporter: {} for reporter in ("", *tasks)}

    def add(self, event: Mapping[str, Any]) -> None:
        """Keep the value of an event, if it is a metric."""
        if is_report(event):
            self._values.setdefault(reporter_of(event), {})[event["name"]] = event["value"]

    def as_result(self) -> dict[str, Any]:
        """Return the field of a run's result that has the metrics; empty if none was reported.

        Those of a member or of a series are in an object of its name, which comes before a metric of the same name.
        """
        own, *others = self._values.items()
        values = {**own[1], **{reporter: values for reporter, values in others if values}}
        return {"metrics": values} if values else {}

    def stop_event(self) -> StoppedEvent:
        """Return the last event of a run that is being stopped: the agent, which knows why, writes its result."""
        return StoppedEvent(self.as_result() or None)
