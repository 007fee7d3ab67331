"""What `restart` shows: who is being waited for, and what is up again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tfcluster.core.status import ClusterStatus
from tfcluster.core.text import pluralize
from tfcluster.ui.console import console
from tfcluster.ui.up import UpView, tasks_table


class RestartView(UpView):
    """Follows tasks through their restart; other tasks of the cluster are left out.

    Args:
        cluster: The cluster's name.
        tasks: Short names of the tasks.
        silent: Show nothing on the way.
    """

    def __init__(self, cluster: str, tasks: Collection[str], *, silent: bool) -> None:
        super().__init__(cluster, silent=silent)
        self._tasks = tasks

    def update(self, status: ClusterStatus) -> None:
        """Say who is not ready yet."""
        super().update(replace(status, tasks=tuple(task for task in status.tasks if task.short in self._tasks)))

    def finish_restart(self, status: ClusterStatus, seconds: float) -> None:
        """Print what is up again.

        Args:
            status: The cluster, with the restarted tasks ready.
            seconds: How long it took.
        """
        tasks = [task for task in status.tasks if task.short in self._tasks]
        console().print(tasks_table(tasks))
        console().print(f"{self._cluster}: {pluralize(len(tasks), 'task')} restarted in {seconds:.2f} s")
