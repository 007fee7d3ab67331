"""What `up` shows: the plan, who is being waited for, and what is up."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster.model.counting import plural
from tfcluster.model.plan import Operation
from tfcluster.model.states import TaskState
from tfcluster.model.status import ClusterStatus
from tfcluster.render.console import console
from tfcluster.render.table import table
from tfcluster.render.waiting import Waiting
from tfcluster.render.words import some


class UpView(Waiting):
    """Follows a cluster on its way up."""

    def __init__(self, cluster: str, *, silent: bool) -> None:
        super().__init__(silent=silent)
        self._cluster = cluster

    def show_plan(self, operations: Sequence[Operation]) -> None:
        """Print what `up` would do."""
        screen = console()
        if not operations:
            screen.print(f"{self._cluster} is up already: nothing to do")
            return
        rows = [(each.kind, each.task.short, each.task.host, each.task.address, each.cause) for each in operations]
        screen.print(table(("OPERATION", "TASK", "HOST", "ADDRESS", "CAUSE"), rows))

    def update(self, status: ClusterStatus) -> None:
        """Say who is not ready yet."""
        waiting = [task.short for task in status.tasks if task.state is not TaskState.READY]
        if waiting:
            ready = f"{len(status.tasks) - len(waiting)} of {plural(len(status.tasks), 'task')} ready"
            self.say(f"{self._cluster}: {ready}, waiting for {some(waiting)}")

    def finish(self, status: ClusterStatus, started: int, seconds: float) -> None:
        """Print what is up.

        Args:
            status: The cluster, ready.
            started: How many tasks this command started.
            seconds: How long it took.
        """
        screen = console()
        if not started:
            screen.print(f"{self._cluster} is up already: nothing changed")
            return
        rows = [(task.short, task.address, task.state.value) for task in status.tasks]
        screen.print(table(("TASK", "ADDRESS", "STATE"), rows))
        screen.print(f"{self._cluster} is up: {plural(started, 'task')} started in {seconds:.2f} s")
