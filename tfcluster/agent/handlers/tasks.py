"""RPC handlers for the tasks of a running cluster: restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.topology import matching_tasks
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.tasks import RestartRequest


class TaskHandlers:
    """Handles the requests about tasks.

    Args:
        supervisor: The tasks.
        refuse_when_going_down: Raises a ClusterError while the cluster goes down.
    """

    def __init__(self, supervisor: Supervisor, refuse_when_going_down: Callable[[], None]) -> None:
        self._supervisor = supervisor
        self._refuse_when_going_down = refuse_when_going_down

    async def restart(self, request: RestartRequest) -> Response[NoReturn, Done]:
        """Restart tasks; see `RestartRequest`."""
        self._refuse_when_going_down()
        topology = self._supervisor.require_cluster()
        names = {task.short: task.name for task in topology.on(self._supervisor.host)}
        self._supervisor.restart([names[short] for short in matching_tasks(request.tasks, list(names))], request.grace)
        yield Reply(Done())
