"""The output of `tfcluster restart`: the tasks that it waits for, then a table of the restarted tasks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tfcluster.core.status import ClusterStatus
from tfcluster.core.text import pluralize
from tfcluster.ui.console import console
from tfcluster.ui.up import UpView, tasks_table


class RestartView(UpView):
    """Shows the progress of restarting tasks; other tasks of the cluster are left out.

    Args:
        cluster: The cluster's name.
        tasks: Short names of the tasks.
        silent: Do not show the progress.
    """

    def __init__(self, cluster: str, tasks: Collection[str], *, silent: bool) -> None:
        super().__init__(cluster, silent=silent)
        self._tasks = tasks

    def update(self, status: ClusterStatus) -> None:
        """Show the tasks that are not ready yet."""
        super().update(replace(status, tasks=tuple(task for task in status.tasks if task.short in self._tasks)))

    def finish_restart(self, status: ClusterStatus, seconds: float) -> None:
        """Print the restarted tasks.

        Args:
            status: The status of the cluster, with the restarted tasks ready.
            seconds: The duration of the restart in seconds.
        """
        tasks = [task for task in status.tasks if task.short in self._tasks]
        console().print(tasks_table(tasks))
        console().print(f"{self._cluster}: {pluralize(len(tasks), 'task')} restarted in {seconds:.2f} s")
