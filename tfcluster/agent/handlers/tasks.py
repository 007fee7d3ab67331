"""The calls about tasks of a cluster that is up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.topology import matching_tasks
from tfcluster.protocol.api import reply
from tfcluster.protocol.codec import Message


class TaskHandlers:
    """Answers the calls about tasks.

    Args:
        supervisor: The tasks.
        refuse_when_going_down: Raises a ClusterError while the cluster goes down.
    """

    def __init__(self, supervisor: Supervisor, refuse_when_going_down: Callable[[], None]) -> None:
        self._supervisor = supervisor
        self._refuse_when_going_down = refuse_when_going_down

    async def restart(self, tasks: list[str], grace: float) -> AsyncIterator[Message]:
        """End tasks and start them anew; the reply comes at once."""
        self._refuse_when_going_down()
        topology = self._supervisor.require_cluster()
        names = {task.short: task.name for task in topology.on(self._supervisor.host)}
        self._supervisor.restart([names[short] for short in matching_tasks(tasks, list(names))], grace)
        yield reply({})
