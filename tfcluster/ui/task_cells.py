"""The cells of a task's row, for every table of tasks, and the columns that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.table import Table

from tfcluster.core.status import TaskStatus
from tfcluster.ui.console import Text, make_table
from tfcluster.ui.format import format_bytes, format_duration, format_optional, short_device

#: The space between two columns.
GAP = 2
TASK_CELLS: dict[str, Callable[[TaskStatus], str]] = {
    "TASK": lambda task: task.short,
    "HOST": lambda task: task.host,
    "ADDRESS": lambda task: task.address,
    "STATE": lambda task: task.state.value,
    "PID": lambda task: format_optional(task.pid),
    "UPTIME": lambda task: format_duration(task.uptime_s),
    "RESTARTS": lambda task: str(task.restarts),
    "CPU": lambda task: "-" if task.cpu_percent is None else f"{task.cpu_percent:.0f}%",
    "MEMORY": lambda task: format_bytes(task.rss_bytes),
    "DEVICES": lambda task: " ".join(map(short_device, task.devices)) or "-",
}


def cell_width(texts: Iterable[str]) -> int:
    """Return the width of a column, with the space after it."""
    return GAP + max(Text(text).cell_len for text in texts)


def fit_columns(
    columns: Sequence[str], rows: Sequence[Mapping[str, str]], left_out: Sequence[str], width: int
) -> list[str]:
    """Return the columns that are left if those in `left_out` are left out, in this order, until the width suffices."""
    widths = {column: cell_width([column, *(row[column] for row in rows)]) for column in columns}
    fitting = list(columns)
    for column in left_out:
        if sum(widths[each] for each in fitting) <= width:
            break
        if column in fitting:
            fitting.remove(column)
    return fitting


def make_tasks_table(tasks: Sequence[TaskStatus]) -> Table:
    """Return a table with a row for each task, and a column for the hosts if there are several."""
    columns = ["TASK", "HOST", "ADDRESS", "STATE"]
    if len({task.host for task in tasks}) == 1:
        columns.remove("HOST")
    return make_table(columns, [[TASK_CELLS[column](task) for column in columns] for task in tasks])
