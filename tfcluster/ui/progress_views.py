"""The output of `up`, `scale`, `restart` and `down`: the plan, the progress on a status line, the tasks at the end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import TracebackType

from rich.status import Status

from tfcluster import settings
from tfcluster.core.plan import PlannedAction, data_losses, summary, terminated_tasks
from tfcluster.core.states import TERMINAL_STATES, TaskState
from tfcluster.core.status import ClusterStatus, TaskStatus
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.protocol.api.logs import LogLine
from tfcluster.ui.console import Text, console, error_console, is_interactive, make_table, make_tasks_table
from tfcluster.ui.format import format_bytes
from tfcluster.ui.log_view import LogView


class StatusLine:
    """Shows one line at a time, on standard error, unless it is silent."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._shown = ""
        self._shown_at = time.monotonic()
        self._status: Status | None = None
        self._limits: dict[str, int] = {}  # by phase: how many may remain for the next line in a pipe

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def show(self, text: str, phase: str = "", remaining: int = 0, total: int = 0) -> None:
        """Replace the text of the status line.

        Without a terminal each text is a line of its own. Of a phase that counts many hosts or tasks, few texts are
        printed: the first, and the next one when an eighth of those that remained then remains.
        """
        if self._silent or text == self._shown:
            return
        screen = error_console()
        if not is_interactive(screen):
            if total > settings.PIPE_PROGRESS_FEW:
                if remaining > self._limits.get(phase, total):
                    return
                self._limits[phase] = min(remaining - 1, math.ceil(remaining / settings.PIPE_PROGRESS_FACTOR))
            screen.print(text)
        elif self._status is None:
            self._status = screen.status(text)
            self._status.start()
        else:
            self._status.update(text)
        self._shown = text

    def show_amount(self, done: int, total: int, verb: str = "") -> None:
        """Show how many of all bytes are done, the first time after a second, and not too often."""
        interval = settings.PIPE_PROGRESS_SECONDS if self._status is None else settings.PROGRESS_INTERVAL_SECONDS
        if time.monotonic() - self._shown_at >= interval:
            self._shown_at = time.monotonic()
            self.show(f"{format_bytes(done)} of {format_bytes(total)}{verb}")

    def show_stopping(self, cluster: str, tasks: Collection[TaskStatus]) -> None:
        """Show which of some tasks have not stopped yet."""
        if running := [task.short for task in tasks if task.state not in TERMINAL_STATES]:
            self.show(f"{cluster}: stopping {summarize_list(running)}", "stop", len(running), len(tasks))


class UpView(StatusLine):
    """Shows the progress of a cluster towards its desired state."""

    def __init__(self, cluster: str, *, silent: bool) -> None:
        super().__init__(silent=silent)
        self._cluster = cluster
        self._log = LogView()

    def show_line(self, line: LogLine) -> None:
        """Show the output of a task that is not ready, above the status line."""
        if self._silent:
            return
        if self._status is not None:
            self._status.stop()
        self._log.show(line.task, line.time, line.line, err=True)
        if self._status is not None:
            self._status.start()

    def show_plan(self, actions: Sequence[PlannedAction]) -> None:
        """Print the planned actions and the data that they lose."""
        screen = console()
        if not actions:
            screen.print(f"{self._cluster} is up already: nothing to do")
            return
        columns = ("OPERATION", "TASK", "HOST", "ADDRESS", "CAUSE")
        screen.print(make_table(columns, list(map(_row, actions)), wrapped=["CAUSE"]))
        for lost in data_losses(actions):
            screen.print(Text.assemble(("LOST", "bold red"), f": {lost}"), soft_wrap=True)

    def stopping(self, status: ClusterStatus, actions: Sequence[PlannedAction]) -> None:
        """Show the tasks that have to stop and have not stopped yet."""
        names = terminated_tasks(actions)
        self.show_stopping(self._cluster, [task for task in status.tasks if task.task in names])

    def update(self, status: ClusterStatus) -> None:
        """Show the tasks that are not ready yet."""
        waiting = [task.short for task in status.tasks if task.state is not TaskState.READY]
        if waiting:
            total = len(status.tasks)
            ready = f"{total - len(waiting)} of {pluralize(total, 'task')} ready"
            text = f"{self._cluster}: {ready}, waiting for {summarize_list(waiting)}"
            self.show(text, "ready", self._count_remaining(waiting), total)

    def _count_remaining(self, waiting: Collection[str]) -> int:
        """Return how many tasks have still to become ready."""
        return len(waiting)

    def finish(self, status: ClusterStatus, actions: Sequence[PlannedAction], seconds: float) -> None:
        """Print the tasks and a summary of the actions."""
        screen = console()
        done = summary(actions)
        if not done:
            screen.print(f"{self._cluster} is up already: {'no task was changed' if actions else 'nothing changed'}")
            return
        screen.print(make_tasks_table(status.tasks), soft_wrap=True)
        screen.print(f"{self._cluster} is up: {done} in {seconds:.2f} s")


def _row(action: PlannedAction) -> tuple[str, str, str, str, str]:
    task = action.task
    where = (task.short, task.host, task.address) if task else ("-", "-", "-")
    return (action.kind.value, *where, action.cause)


class RestartView(UpView):
    """Shows the progress of restarting tasks; other tasks of the cluster are left out."""

    def __init__(self, cluster: str, tasks: Collection[str], *, silent: bool) -> None:
        super().__init__(cluster, silent=silent)
        self._tasks = tasks
        self._begun: set[str] = set()

    def update(self, status: ClusterStatus) -> None:
        """Show the tasks that are not ready yet."""
        super().update(replace(status, tasks=tuple(task for task in status.tasks if task.short in self._tasks)))

    def _count_remaining(self, waiting: Collection[str]) -> int:
        """Return how many tasks have still to become ready, those included whose turn has not come."""
        self._begun.update(waiting)
        return len(self._tasks) - len(self._begun.difference(waiting))

    def finish_restart(self, status: ClusterStatus, seconds: float) -> None:
        """Print the restarted tasks."""
        tasks = [task for task in status.tasks if task.short in self._tasks]
        console().print(make_tasks_table(tasks), soft_wrap=True)
        console().print(f"{self._cluster}: {pluralize(len(tasks), 'task')} restarted in {seconds:.2f} s")


class FetchView(StatusLine):
    """Shows how much of some files has arrived, if that takes over a second."""

    def __init__(self, total: int, *, silent: bool) -> None:
        super().__init__(silent=silent)
        self._total = total
        self._done = 0

    def add(self, size: int) -> None:
        """Show that more bytes have arrived."""
        self._done += size
        self.show_amount(self._done, self._total)


class SendingView(StatusLine):
    """Shows on a terminal how much of the code for other hosts has been sent, if that takes over a second."""

    def __init__(self) -> None:
        super().__init__(silent=not is_interactive(error_console()))
        self._lock = threading.Lock()  # several hosts at the same time
        self._hosts: dict[str, tuple[int, int]] = {}

    def update(self, host: str, size: int, remaining_bytes: int) -> None:
        """Show what is left of the code for a host; at the end of all, the line disappears."""
        with self._lock:
            self._hosts[host] = (size, remaining_bytes)
            size, remaining_bytes = (sum(values) for values in zip(*self._hosts.values(), strict=True))
            if remaining_bytes == 0:
                self.end()
            else:
                self.show_amount(size - remaining_bytes, size, " sent")


class DownView(StatusLine):
    """Shows the progress of stopping a cluster."""

    def __init__(self, cluster: str, *, silent: bool) -> None:
        super().__init__(silent=silent)
        self._cluster = cluster
        self._tasks = 0

    def update(self, status: ClusterStatus) -> None:
        """Show the tasks that are still running."""
        self._tasks = len(status.tasks)
        self.show_stopping(self._cluster, status.tasks)

    def finish(self) -> None:
        """Print that the cluster is down."""
        stopped = f": {pluralize(self._tasks, 'task')} stopped" if self._tasks else ""  # else a warning names them
        console().print(f"{self._cluster} is down{stopped}")
