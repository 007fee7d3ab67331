"""The output of `tfcluster down`: a status line of the tasks that are being stopped."""

from __future__ import annotations

from tfcluster.core.states import TERMINAL_STATES
from tfcluster.core.status import ClusterStatus
from tfcluster.core.text import pluralize, some
from tfcluster.ui.console import console
from tfcluster.ui.status_line import StatusLine


class DownView(StatusLine):
    """Shows the progress of stopping a cluster."""

    def __init__(self, cluster: str, *, silent: bool) -> None:
        super().__init__(silent=silent)
        self._cluster = cluster
        self._tasks = 0

    def update(self, status: ClusterStatus) -> None:
        """Show the tasks that are still running."""
        self._tasks = len(status.tasks)
        left = [task.short for task in status.tasks if task.state not in TERMINAL_STATES]
        if left:
            self.say(f"{self._cluster}: stopping {some(left)}")

    def finish(self) -> None:
        """Print that the cluster is down."""
        console().print(f"{self._cluster} is down: {pluralize(self._tasks, 'task')} stopped")
