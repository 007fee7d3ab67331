"""The rows and lines of the full-screen view, and the details of a task or run, made from a view of the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfcluster.client.live.view import LiveRun, LiveView
from tfcluster.client.logs import Line
from tfcluster.core.states import HostState, TaskState
from tfcluster.core.status import HostStatus, TaskStatus
from tfcluster.core.text import pluralize
from tfcluster.protocol.serialization import to_json
from tfcluster.ui.console import GAP, TASK_CELLS, Text, cell_width, fit_columns
from tfcluster.ui.format import format_bytes, format_duration, format_optional, style_of
from tfcluster.ui.listings import format_inputs, format_metrics, format_outcome, format_times
from tfcluster.ui.log_view import format_event

_BAR = 14
_RUN_COLUMNS = ("RUN", "PROGRAM", "STATE", "TIME", "PROGRESS")
_PROGRESS_WIDTH = 40  # of a bar and a metric; errors may be longer
_WEIGHTS = (3, 2, 1)  # of tasks, runs and events
_COLUMNS = tuple(TASK_CELLS)
#: The columns of tasks, in the order in which they are left out if the terminal is too narrow, and never the others.
_LEFT_OUT = ("DEVICES", "PID", "ADDRESS", "UPTIME", "HOST", "RESTARTS")

_NUMBERS = ("UPTIME", "RESTARTS", "CPU", "MEMORY", "PID")


@dataclass(frozen=True)
class Content:
    """The content of a table."""

    columns: tuple[str, ...]
    widths: tuple[int, ...]
    rows: dict[str, tuple[Text, ...]]  # by the name of the task or run

    @property
    def layout(self) -> tuple[tuple[str, ...], tuple[int, ...], list[str]]:
        """Return what is the same as long as only cells change."""
        return self.columns, self.widths, list(self.rows)


#: The sort orders of the tasks that `s` goes through, as the screen names them.
ORDERS: dict[str, Callable[[TaskStatus], Any]] = {
    "spec": lambda task: 0,
    "state": lambda task: (task.state is TaskState.READY, task.state.value),
    "CPU": lambda task: -(task.cpu_percent or 0.0),
    "memory": lambda task: -(task.rss_bytes or 0),
    "restarts": lambda task: -task.restarts,
    "host": lambda task: task.host,
}


def title_line(view: LiveView, order: str, pattern: str) -> Text:
    """Return the first line: the cluster, its state, how many of its tasks are ready, how the tables are arranged."""
    status = view.status
    ready = sum(task.state is TaskState.READY for task in status.tasks)
    line = Text.assemble(
        (f" {status.cluster}", "bold"),
        "  ",
        (status.state.value, style_of(status.state.value)),
        f"  {ready} of {pluralize(len(status.tasks), 'task')} ready",
    )
    if len(status.hosts) > 1:
        line.append(f" on {len(status.hosts)} hosts")
    line.append(f"  sorted by {order}" if order != next(iter(ORDERS)) else "")
    line.append(f"  filter: {pattern}" if pattern else "", "bold")
    return line


def host_lines(view: LiveView, limit: int) -> list[Text]:
    """Return a line for each host; if there are too many, those that are unreachable come first."""
    hosts, rest = list(view.status.hosts), []
    if len(hosts) > limit:
        hosts.sort(key=lambda host: host.state is HostState.UP)
        hosts, rest = hosts[: limit - 1], hosts[limit - 1 :]
    width = max((len(host.host) for host in hosts), default=0)
    lines = [_host_line(host, view, width) for host in hosts]
    if rest:
        up = sum(host.state is HostState.UP for host in rest)
        lines.append(Text(f" … {pluralize(len(rest), 'more host')}, {up} of them up", style="dim"))
    return lines


def _host_line(host: HostStatus, view: LiveView, width: int) -> Text:
    link = view.links.get(host.host)
    name = f" {host.host:<{width}}  "
    if link is not None and link.lost_at is not None:
        since = time.strftime("%H:%M:%S", time.localtime(link.lost_at))
        reason = link.reason.partition("\n")[0]
        return Text.assemble((f"{name}unreachable since {since}", "dim"), (f"  {reason}", "dim"))
    line = Text.assemble(name, (f"{host.state:<4}", style_of(host.state)))
    load = host.load
    if load is None:
        return line
    percent = "-" if load.cpu_percent is None else f"{load.cpu_percent:.0f}%"
    line.append(f"  CPU {percent:>4} of {load.cpus}")
    line.append(f"  memory {_share(load.memory_used_bytes, load.memory_total_bytes)}")
    if load.gpus:
        known = [gpu.utilization_percent for gpu in load.gpus if gpu.utilization_percent is not None]
        busy = f"{sum(known) / len(known):.0f}%" if known else "-"
        used = sum(gpu.memory_used_bytes for gpu in load.gpus)
        total = sum(gpu.memory_total_bytes for gpu in load.gpus)
        line.append(f"  {pluralize(len(load.gpus), 'GPU')} {busy} {_share(used, total)}")
    return line


def _share(used: int, total: int) -> str:
    return f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB"


def task_content(view: LiveView, order: str, pattern: str, width: int) -> Content:
    """Return the table of the tasks that match the pattern, ignoring case, with as many columns as fit the width."""
    tasks = sorted(view.status.tasks, key=ORDERS[order])
    away = {host for host, link in view.links.items() if link.lost_at is not None}
    cells = {task.short: {column: cell(task) for column, cell in TASK_CELLS.items()} for task in tasks}
    has_hosts = len({task.host for task in tasks}) > 1
    columns = [column for column in _COLUMNS if column != "HOST" or has_hosts]
    tasks = [task for task in tasks if _matches(pattern, cells[task.short].values())]
    columns = fit_columns(columns, [cells[task.short] for task in tasks], _LEFT_OUT, width)
    rows = {task.short: [cells[task.short][column] for column in columns] for task in tasks}
    styles = ["dim" if task.host in away else "" for task in tasks]
    content = _content(columns, rows, styles, right=_NUMBERS)
    if (missing := sum(content.widths) - width) > 0:
        longest = content.widths[0] - GAP - missing
        rows = {short: [_shorten(short, longest), *row[1:]] for short, row in rows.items()}
        content = _content(columns, rows, styles, right=_NUMBERS)
    return content


def run_content(view: LiveView, pattern: str, width: int) -> Content:
    """Return the table of runs, the latest first; the arguments are those of `task_content`."""
    cells = {}
    for run in reversed(view.runs):
        record = run.record
        program = record.script or record.program
        row = [record.run, program, record.state.value, _describe_time(run), describe_progress(run)]
        if _matches(pattern, row):
            cells[record.run] = dict(zip(_RUN_COLUMNS, row, strict=True))
    shortened = [{**row, "PROGRESS": row["PROGRESS"][:_PROGRESS_WIDTH]} for row in cells.values()]
    columns = fit_columns(list(_RUN_COLUMNS), shortened, ["PROGRAM"], width + GAP)
    rows = {name: [row[column] for column in columns] for name, row in cells.items()}
    content = _content(columns, rows, [""] * len(rows), right=("TIME",))
    last = max(GAP + len(columns[-1]), width - sum(content.widths[:-1]))
    for cells_of_run in content.rows.values():
        cells_of_run[-1].truncate(last, overflow="ellipsis")
    return replace(content, widths=(*content.widths[:-1], last))


def _shorten(task: str, width: int) -> str:
    """Shorten the name of a task in its job, not in its index: `long-n…:12`."""
    job, _, index = task.rpartition(":")
    return task if len(task) <= width else f"{job[: max(width - len(index) - 2, 1)]}…:{index}"


def _describe_time(run: LiveRun) -> str:
    """Describe how long a run has taken: from its submission on, or as `runs` does if it has ended."""
    return format_duration(time.time() - run.record.started) if run.is_active else format_times(to_json(run.record))


def describe_progress(run: LiveRun) -> str:
    """Describe how far a run is: a bar, its latest metrics, what it waits for, or its outcome."""
    if not run.is_active:
        return format_outcome(to_json(run.record)).partition("\n")[0]
    parts = []
    if run.wait is None and run.progress is not None and (total := run.progress["total"]):
        part = min(1.0, run.progress["done"] / total)
        full = round(_BAR * part)
        parts.append(f"{'█' * full}{'░' * (_BAR - full)} {100 * part:3.0f}%")
    if activity := describe_activity(run):
        parts.append(activity)
    return "  ".join(parts) or "-"


def describe_activity(run: LiveRun) -> str:
    """Describe what an active run does: its latest metrics, or what it waits for; empty if neither is known."""
    if run.wait is not None:
        problems = "; ".join(each["problem"] for each in run.wait["problems"])
        return f"waits: {problems or run.wait['call']}"
    metrics = format_metrics(run.metrics)
    return metrics if run.step is None else f"step={run.step} {metrics}"


def share_lines(lines: int, wanted: Sequence[int]) -> list[int]:
    """Divide the lines of the screen among tasks, runs and events; who wants few leaves the others more.

    Where not all find room, tasks get three lines for two of the runs and one of the events.
    """
    given = [0] * len(wanted)
    for _ in range(lines):
        growing = [at for at, most in enumerate(wanted) if given[at] < most]
        if not growing:
            break
        given[min(growing, key=lambda at: (given[at] + 1) / _WEIGHTS[at])] += 1
    return given


def find_events(view: LiveView, pattern: str) -> Sequence[Line]:
    """Return the events that match the pattern, ignoring case, the oldest first."""
    names = ("host", "task", "event", "detail")
    return [event for event in view.events if _matches(pattern, [str(event.get(name) or "") for name in names])]


def event_lines(events: Sequence[Line], limit: int) -> list[Text]:
    """Return a line for each of the last events; only these are formatted, as there may be hundreds."""
    return [Text.assemble(" ", format_event(event, "%H:%M:%S")) for event in events[max(0, len(events) - limit) :]]


def join_lines(lines: Sequence[Text]) -> Text:
    """Return lines as one text."""
    return Text.assemble(*(part for number, line in enumerate(lines) for part in ("\n" * bool(number), line)))


def _matches(pattern: str, cells: Iterable[str]) -> bool:
    return any(pattern.lower() in cell.lower() for cell in cells)


def _content(
    columns: Sequence[str], rows: Mapping[str, Sequence[str]], styles: Sequence[str], right: Sequence[str]
) -> Content:
    """Return the content of a table; a row's style replaces the colour of its state."""
    cells = zip(*rows.values(), strict=True) if rows else [()] * len(columns)
    widths = tuple(cell_width([column, *texts]) for column, texts in zip(columns, cells, strict=True))
    made = {
        key: tuple(
            _cell(text, width, style or style_of(text), column in right)
            for text, column, width in zip(row, columns, widths, strict=True)
        )
        for (key, row), style in zip(rows.items(), styles, strict=True)
    }
    return Content(tuple(columns), widths, made)


def _cell(text: str, width: int, style: str, is_right: bool) -> Text:
    cell = Text(text, style=style, no_wrap=True)
    if is_right:
        cell.pad_left(width - GAP - cell.cell_len)
    return cell


def describe_task(view: LiveView, name: str) -> Text:
    """Describe a task."""
    task = next((task for task in view.status.tasks if task.short == name), None)
    if task is None:
        return Text(f" {name} is no longer a task of the cluster")
    used = "-"
    if task.cpu_percent is not None:
        used = f"CPU {task.cpu_percent}%, memory {format_bytes(task.rss_bytes)}"
    if task.gpu_memory_bytes is not None:
        used += f", GPU memory {format_bytes(task.gpu_memory_bytes)}"
    last = ""
    if task.last_exit is not None:
        last = f"{task.last_exit}{f': {task.last_exit.detail}' if task.last_exit.detail else ''}"
    restarts = f", {pluralize(task.restarts, 'restart')}" if task.restarts else ""
    return _lines(
        (f"{task.short}", task.state.value, f"on {task.host}, up {format_duration(task.uptime_s)}{restarts}"),
        {
            "address": f"{task.address}, pid {format_optional(task.pid)}",
            "devices": " ".join(task.devices),
            "uses": used,
            "last exit": last,
            "last probe": task.probe_error or "",
        },
    )


def describe_run(view: LiveView, name: str) -> Text:
    """Describe a run."""
    run = next((run for run in view.runs if run.record.run == name), None)
    if run is None:
        return Text(f" {name} is no longer among the latest runs")
    record, fields = run.record, to_json(run.record)
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
    error = record.error or {}
    gpu_memory = next((each.gpu_memory_bytes for each in view.status.runs if each.run == name), None)
    return _lines(
        (record.run, record.state.value, f"on {run.host}, {_describe_time(run)}, started {started}"),
        {
            "program": record.script or record.program,
            "inputs": format_inputs(fields),
            "progress": describe_progress(run) if run.is_active else "",
            "uses": "" if gpu_memory is None else f"GPU memory {format_bytes(gpu_memory)}",
            "result": "" if run.is_active else format_outcome(fields),
            "hint": str(error.get("hint") or ""),
        },
    )


def _lines(heading: tuple[str, str, str], details: Mapping[str, str]) -> Text:
    name, state, where = heading
    text = Text.assemble((f" {name}", "bold"), "  ", (state, style_of(state)), f"  {where}")
    for label, value in details.items():
        if value:
            text.append("\n").append(Text.assemble((f" {label:<10}", "dim"), value.partition("\n")[0]))
    return text
