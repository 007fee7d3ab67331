"""What `status` shows."""

from __future__ import annotations

from rich.text import Text

from tfcluster.model.status import ClusterStatus, TaskStatus
from tfcluster.render.console import console
from tfcluster.render.table import table
from tfcluster.render.words import dash, duration, memory, short_device, style_of

_COLUMNS = ("TASK", "HOST", "ADDRESS", "STATE", "PID", "UPTIME", "RESTARTS", "CPU", "MEMORY", "DEVICES")
_NUMBERS = ("PID", "UPTIME", "RESTARTS", "CPU", "MEMORY")


def show_status(status: ClusterStatus) -> None:
    """Print the cluster, its tasks, its runs, and how tasks that are not well ended."""
    screen = console()
    versions = sorted({host.tensorflow for host in status.hosts if host.tensorflow})
    screen.print(
        Text.assemble(
            (status.cluster, "bold"),
            "  ",
            (status.state.value, style_of(status.state.value)),
            f"  TensorFlow {', '.join(versions)}" if versions else "",
            f"  {status.spec}",
        )
    )
    screen.print()
    screen.print(table(_COLUMNS, [_row(task) for task in status.tasks], right=_NUMBERS))
    for task in status.tasks:
        if task.last_exit is not None:
            screen.print(f"\n{task.short} last ended with {task.last_exit.reason}. {task.last_exit.detail}")
    if status.runs:
        screen.print()
        rows = [(run.run, run.program, run.state.value, duration(run.seconds)) for run in status.runs]
        screen.print(table(("RUN", "PROGRAM", "STATE", "TIME"), rows, right=("TIME",)))


def _row(task: TaskStatus) -> tuple[str, ...]:
    return (
        task.short,
        task.host,
        task.address,
        task.state.value,
        dash(task.pid),
        duration(task.uptime_s),
        str(task.restarts),
        "-" if task.cpu_percent is None else f"{task.cpu_percent:.0f}%",
        memory(task.rss_bytes),
        " ".join(map(short_device, task.devices)) or "-",
    )
