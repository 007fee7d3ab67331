"""The output of `tfcluster run`: a progress bar with metrics, then the result, the work per device, and the notes."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import rich.text
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn

from tfcluster import programs, settings
from tfcluster.client.runs.requests import OutputLines, encode
from tfcluster.control_characters import escape_control_characters
from tfcluster.core.groups import LAST_LINES
from tfcluster.core.programs import SCRIPT
from tfcluster.core.run_events import (
    ImportedEvent,
    ImportingEvent,
    InterruptEvent,
    MetricEvent,
    OutputEvent,
    PlacementEvent,
    ProgressEvent,
    RestartEvent,
    ResultEvent,
    SubmittedEvent,
    TaskDownEvent,
    TrialEvent,
    WaitingEndedEvent,
    WaitingEvent,
    parse_event,
)
from tfcluster.core.runs import script_exit_code
from tfcluster.core.text import pluralize
from tfcluster.errors import ClusterError
from tfcluster.ui.console import Text, console, error_console, is_interactive, make_table
from tfcluster.ui.format import format_duration, format_rate, style_of
from tfcluster.ui.log_view import LogView, PlacementView
from tfcluster.ui.trials import format_trial, make_trials_table

_PER_SECOND = "_per_s"


class RunView:
    """Shows the events of one run; if `silent`, nothing but the final result.

    With `raw`, a script's output is passed on byte by byte, and nothing is added to it: for the user who started it.
    """

    def __init__(self, *, silent: bool, placements: bool = False, raw: bool = False) -> None:
        self._silent = silent
        self._raw = raw
        self._shows_placements = placements
        self._run = ""
        self._metrics = Metrics()
        self._placements = PlacementView()
        self._lines = OutputLines()
        self._members = LogView()
        self._in_view: deque[str] = deque(maxlen=settings.GROUP_LINES_IN_VIEW)  # the latest lines of members
        self._progress: Progress | None = None
        self._may_show_progress = raw  # a script may read what is typed at the terminal, unless it reports progress
        self._printed_at = time.monotonic()
        self._shown_notes: list[str] = []

    def __enter__(self) -> None:
        if not self._raw:
            self._start_progress("starting")

    def _start_progress(self, description: str) -> None:
        if not self._silent and is_interactive(error_console()):
            self._progress = _ProgressWithMetrics(
                self._metrics,
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                _Rate(),
                _Remaining(compact=True),
                console=error_console(),
                transient=True,
            )
            self._progress.add_task(description, total=None, unit="", seconds=0.0)
            self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_progress()

    def _stop_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def update(self, record: dict[str, Any]) -> None:
        """Show an event, if its type is shown."""
        event = parse_event(record)
        if isinstance(event, SubmittedEvent):
            self._run = event.run
        if self._silent:
            return
        if isinstance(event, SubmittedEvent):
            self._show_notes(event.notes or [])
        elif isinstance(event, (ImportingEvent, ImportedEvent)):
            self._show_import(is_importing=isinstance(event, ImportingEvent))
        elif isinstance(event, RestartEvent):
            problem = event.problem.partition("\n")[0]
            self._show_notes([f"{problem}: restarting all ({pluralize(event.left, 'restart')} left)"])
        elif isinstance(event, TaskDownEvent):
            self._show_notes([event.problem])
        elif isinstance(event, TrialEvent):
            self._show_trial(event)
        elif isinstance(event, WaitingEvent):
            hints = dict.fromkeys(each["hint"] for each in event.problems)
            logs = [f"{task} | {line}" for task, lines in (event.logs or {}).items() for line in lines]
            self._show_notes(["\n  ".join((event.message, *hints, *logs))])
        elif isinstance(event, WaitingEndedEvent):
            self._show_notes([f"{event.call} continued after {format_duration(event.seconds)}"])
        elif isinstance(event, InterruptEvent) and not event.is_handled:
            self._show_notes(["interrupted, but the program is inside TensorFlow: press Ctrl-C again to end it"])
        elif isinstance(event, OutputEvent):
            self._print_output(record)
        elif isinstance(event, ResultEvent):
            self._print_output(record)
            if event.result is not None and "trials" in event.result:
                self._stop_progress()
                console().print(make_trials_table(event.result["trials"]), soft_wrap=True)
            if event.state == "cancelled" and script_exit_code(record) is None:
                error_console().print(f"{self._run} was cancelled after {format_duration(event.seconds)}")
        elif isinstance(event, PlacementEvent) and self._shows_placements:
            self._print_above(self._placements.line(event))
        elif isinstance(event, ProgressEvent):
            self._show_progress(event)
        elif isinstance(event, MetricEvent):
            self._metrics.update(event)

    def _show_trial(self, event: TrialEvent) -> None:
        """Show how a trial has ended, above the progress bar if there is one, which has the metrics of the others."""
        if event.state != "running":
            self._metrics.forget(f"trial:{event.trial}")
        if (line := format_trial(event)) is not None:
            screen = error_console() if self._progress is None else self._progress.console
            screen.print(Text(line, style=style_of(event.state)), soft_wrap=True)

    def _show_import(self, *, is_importing: bool) -> None:
        """Show why the program has not started yet; nothing reads what is typed at the terminal meanwhile."""
        self._stop_progress()
        if is_importing or not self._raw:
            self._start_progress("TensorFlow is being imported" if is_importing else "starting")

    def _show_progress(self, event: ProgressEvent) -> None:
        if self._may_show_progress:
            self._may_show_progress = False
            self._start_progress(self._run)
        if self._progress is not None:
            self._progress.update(
                self._progress.task_ids[0],
                description=self._run,
                completed=event.done,
                total=event.total,
                unit=event.unit,
                seconds=event.seconds,
            )
        elif event.done >= event.total > 0:
            pass  # the result follows
        elif time.monotonic() - self._printed_at >= settings.PIPE_PROGRESS_SECONDS:
            self._printed_at = time.monotonic()
            error_console().print("\n  ".join((_format_progress(self._run, event), *self._metrics.changed())))

    def _print_output(self, event: dict[str, Any]) -> None:
        """Print a script's output, after ending the progress bar, which would interfere with it."""
        parts = [event] if self._raw else self._lines.convert(event)
        for part in parts:
            if part["event"] != "output":
                continue
            self._may_show_progress = False
            self._stop_progress()
            stream = sys.stderr if part["stream"] == "stderr" else sys.stdout
            if self._raw:
                stream.flush()
                stream.buffer.write(encode(part))
            else:
                prefix = self._members.prefix_of(part["task"]) if "task" in part else ""
                # Of a line that a progress bar has written several times, the last version counts.
                line = part["line"].rstrip("\r").rpartition("\r")[2] if prefix else part["line"]
                self._in_view.append(line.rstrip())
                print(f"{prefix}{escape_control_characters(line)}", file=stream)
            stream.flush()

    def _print_above(self, line: str) -> None:
        """Print tfcluster's own line above the progress bar, which continues below it."""
        if self._progress is not None:
            self._progress.console.print(line, soft_wrap=True)
        else:
            print(escape_control_characters(line), flush=True)

    def _show_notes(self, notes: Sequence[str]) -> None:
        """Show notes on standard error as soon as they are known, above the progress bar if there is one."""
        self._shown_notes += notes
        screen = error_console() if self._progress is None else self._progress.console
        for note in notes:
            screen.print(_format_note(note), soft_wrap=True)

    def error_of(self, result: dict[str, Any]) -> ClusterError:
        """Return the error of a run, without the last lines of a member if they are still in view."""
        error = ClusterError.from_json(result["error"])
        first, _, last = error.message.partition(LAST_LINES)
        if all(line.removeprefix("  ") in self._in_view for line in last.splitlines()[1:]):
            error.message = first
        return error

    def finish(self, result: dict[str, Any]) -> None:
        """Print the result, or raise the run's error as ClusterError."""
        if "error" in result:
            raise self.error_of(result)
        if result["state"] != "succeeded":
            return
        screen = console()
        if (placements := self._placements.summary()) is not None:
            screen.print(Group(Text(), placements, Text()), soft_wrap=True)
        if lines := render_result(result):
            screen.print(Group(*lines, Text(), _make_devices_table(result)), soft_wrap=True)
        for note in result["notes"]:
            if note not in self._shown_notes:
                (error_console() if self._raw else screen).print(_format_note(note))


def _format_note(note: str) -> Text:
    return Text(f"note: {note}", style="yellow")


class Metrics:
    """Keeps the latest values of each reporter: the program, its series, or the members of a group."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._values: dict[str, dict[str, float | None]] = {}
        self._changed: set[str] = set()

    def update(self, event: MetricEvent) -> None:
        """Add a metric event."""
        reporter = " ".join(filter(None, (event.task, event.series)))
        self._steps[reporter] = event.step
        self._values.setdefault(reporter, {})[event.name] = event.value
        self._changed.add(reporter)

    def forget(self, task: str) -> None:
        """Forget the values of a member and its series."""
        for reporter in [each for each in self._values if each.partition(" ")[0] == task]:
            del self._values[reporter]
        self._changed &= self._values.keys()

    def latest(self) -> list[str]:
        """Return a line for each reporter."""
        return [self._line(reporter) for reporter in sorted(self._values)]

    def changed(self) -> list[str]:
        """Return the lines that have changed since the last call."""
        lines = [self._line(reporter) for reporter in sorted(self._changed)]
        self._changed.clear()
        return lines

    def _line(self, reporter: str) -> str:
        values = (_format_metric(name, value) for name, value in self._values[reporter].items())
        return "  ".join(filter(None, (reporter, f"step {self._steps[reporter]:,}", *values)))


def _format_metric(name: str, value: float | None) -> str:
    if value is None:
        return f"{name} not finite"
    if name.endswith(_PER_SECOND):
        return format_rate(value, name.removesuffix(_PER_SECOND))
    return f"{name} {value:.4g}"


def render_result(event: dict[str, Any]) -> Sequence[RenderableType]:
    """Return the lines that show the result of a run: none of a script, whose output has been shown already.

    A result of another version of the program is shown unformatted.
    """
    if event["program"] == SCRIPT:
        return []
    try:
        lines: Sequence[RenderableType] = programs.load(event["program"]).summary(event["result"], event["seconds"])
    except (ImportError, KeyError, TypeError):
        return _plain_summary(event)
    return lines


def _plain_summary(event: dict[str, Any]) -> list[Text]:
    lines = [Text.assemble((f"{name} = ", "bold"), json.dumps(value)) for name, value in event["result"].items()]
    return [*lines, Text(format_duration(event["seconds"]))]


class _ProgressWithMetrics(Progress):
    def __init__(self, metrics: Metrics, *columns: ProgressColumn, **options: Any) -> None:
        self._metrics = metrics
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from (Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._metrics.latest())


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(format_rate(task.speed, task.fields["unit"]))


class _Remaining(TimeRemainingColumn):
    """A column with the time that is left, when it can be estimated."""

    def render(self, task: Task) -> rich.text.Text:
        """Render the estimate."""
        if task.total is None or not _can_estimate(task.completed, task.total, task.fields["seconds"]):
            return Text("--:--", style="progress.remaining")
        return super().render(task)


def _format_progress(run: str, event: ProgressEvent) -> str:
    done, total, unit = event.done, event.total, event.unit
    speed = done / event.seconds if event.seconds else 0.0
    percent = 100 * done / total if total else 100.0
    parts = [f"{run}: {percent:.0f}%", f"{done:,} of {total:,} {unit}", format_rate(speed, unit)]
    if speed and _can_estimate(done, total, event.seconds):
        parts.append(f"{format_duration((total - done) / speed)} left")
    return ", ".join(parts)


def _can_estimate(done: float, total: float, seconds: float) -> bool:
    """Return whether the speed of a run so far says how long the rest takes."""
    return 100 * done >= settings.ESTIMATE_MIN_PERCENT * total or seconds >= settings.ESTIMATE_SECONDS


def _make_devices_table(result: dict[str, Any]) -> Any:
    work = result["devices"]
    measures = list(dict.fromkeys(measure for done in work.values() for measure in done))
    rows = [(device, *(f"{done.get(measure, 0):,}" for measure in measures)) for device, done in sorted(work.items())]
    headings = [measure.upper() for measure in measures]
    return make_table(("DEVICE", *headings), rows, right=headings)
