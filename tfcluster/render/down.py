"""What `down` shows."""

from __future__ import annotations

from tfcluster.model.counting import plural, some
from tfcluster.model.states import AT_REST
from tfcluster.model.status import ClusterStatus
from tfcluster.render.console import console
from tfcluster.render.waiting import Waiting


class DownView(Waiting):
    """Follows a cluster on its way down."""

    def __init__(self, cluster: str, *, silent: bool) -> None:
        super().__init__(silent=silent)
        self._cluster = cluster
        self._tasks = 0

    def update(self, status: ClusterStatus) -> None:
        """Say who still runs."""
        self._tasks = len(status.tasks)
        left = [task.short for task in status.tasks if task.state not in AT_REST]
        if left:
            self.say(f"{self._cluster}: stopping {some(left)}")

    def finish(self) -> None:
        """Say that it is over."""
        console().print(f"{self._cluster} is down: {plural(self._tasks, 'task')} stopped")
