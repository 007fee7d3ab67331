"""What `down` shows."""

from __future__ import annotations

from tfcluster.core.states import TERMINAL_STATES
from tfcluster.core.status import ClusterStatus
from tfcluster.core.text import pluralize, some
from tfcluster.ui.console import console
from tfcluster.ui.status_line import StatusLine


class DownView(StatusLine):
    """Follows a cluster on its way down."""

    def __init__(self, cluster: str, *, silent: bool) -> None:
        super().__init__(silent=silent)
        self._cluster = cluster
        self._tasks = 0

    def update(self, status: ClusterStatus) -> None:
        """Say who still runs."""
        self._tasks = len(status.tasks)
        left = [task.short for task in status.tasks if task.state not in TERMINAL_STATES]
        if left:
            self.say(f"{self._cluster}: stopping {some(left)}")

    def finish(self) -> None:
        """Say that it is over."""
        console().print(f"{self._cluster} is down: {pluralize(self._tasks, 'task')} stopped")
