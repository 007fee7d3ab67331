"""The output of `tfcluster status`: a table of tasks, their last exits, and a table of the latest runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from tfcluster.core.status import ClusterStatus, TaskStatus
from tfcluster.ui.console import console
from tfcluster.ui.format import dash, duration, memory, short_device, style_of
from tfcluster.ui.table import table
from tfcluster.ui.text import Text

_CELLS: dict[str, Callable[[TaskStatus], str]] = {
    "TASK": lambda task: task.short,
    "HOST": lambda task: task.host,
    "ADDRESS": lambda task: task.address,
    "STATE": lambda task: task.state.value,
    "PID": lambda task: dash(task.pid),
    "UPTIME": lambda task: duration(task.uptime_s),
    "RESTARTS": lambda task: str(task.restarts),
    "CPU": lambda task: "-" if task.cpu_percent is None else f"{task.cpu_percent:.0f}%",
    "MEMORY": lambda task: memory(task.rss_bytes),
    "DEVICES": lambda task: " ".join(map(short_device, task.devices)) or "-",
}
_COLUMNS = tuple(_CELLS)
_RUNS_SHOWN = 8
_NUMBERS = ("PID", "UPTIME", "RESTARTS", "CPU", "MEMORY")
# The columns to leave out, in this order, if the terminal is too narrow for all; `-o json` has all of them.
_LEFT_OUT = ("HOST", "DEVICES", "PID", "RESTARTS", "CPU", "MEMORY", "UPTIME", "ADDRESS")


def show_status(status: ClusterStatus) -> None:
    """Print the cluster, its tasks, the last exit of tasks that have one, and its latest runs."""
    screen = console()
    tasks = _tasks(status, _COLUMNS)
    hosts = {task.host for task in status.tasks}
    columns = list(_COLUMNS)
    for column in _LEFT_OUT:
        if _width(tasks) <= screen.width:
            break
        if column == "HOST" and len(hosts) > 1:  # only a single host can be named in the title instead
            continue
        columns.remove(column)
        tasks = _tasks(status, columns)
    once = "HOST" not in columns
    versions = sorted({host.tensorflow for host in status.hosts if host.tensorflow})
    screen.print(
        Text.assemble(
            (status.cluster, "bold"),
            "  ",
            (status.state.value, style_of(status.state.value)),
            f"  TensorFlow {', '.join(versions)}" if versions else "",
            f"  on {', '.join(hosts)}" if once else "",
            f"  {status.spec}",
        ),
        soft_wrap=True,
    )
    screen.print()
    screen.print(tasks)
    if absent := [f"{host.host} is {host.state}" for host in status.hosts if host.state != "up"]:
        screen.print("\n" + "\n".join(absent), soft_wrap=True)
    for task in status.tasks:
        if task.last_exit is not None:
            said = f": {task.last_exit.detail}" if task.last_exit.detail else ""
            screen.print(f"\n{task.short} last ended with {task.last_exit}{said}", soft_wrap=True)
            for line in task.last_exit.log:
                screen.print(f"  {line}", soft_wrap=True)
    if status.runs:
        screen.print()
        latest = status.runs[-_RUNS_SHOWN:]
        rows = [(run.run, run.program, run.state.value, duration(run.seconds)) for run in latest]
        screen.print(table(("RUN", "PROGRAM", "STATE", "TIME"), rows, right=("TIME",)))


def _width(shown: Table) -> int:
    """Return the width that a table needs to be shown without truncation."""
    screen = console()
    return screen.measure(shown, options=screen.options.update(max_width=10_000)).maximum


def _tasks(status: ClusterStatus, columns: Sequence[str]) -> Table:
    rows = [[_CELLS[column](task) for column in columns] for task in status.tasks]
    return table(columns, rows, right=_NUMBERS)
