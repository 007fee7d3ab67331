"""RPC handlers for the tasks of a running cluster: status, watch, devices, restart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.core.status import ClusterStatus
from tfcluster.core.topology import matching_tasks
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.cluster import DevicesReply, DevicesRequest, RestartRequest, StatusRequest, WatchRequest


class TaskHandlers:
    """Handles the requests about tasks.

    Args:
        context: The parts of the agent.
        wait_idle: Waits until no plan is being executed.
    """

    def __init__(self, context: AgentContext, wait_idle: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._supervisor = context.supervisor
        self._wait_idle = wait_idle

    async def status(self, request: StatusRequest) -> Response[NoReturn, ClusterStatus]:
        """Return the status of the cluster."""
        yield Reply(self._context.status())

    async def watch(self, request: WatchRequest) -> Response[ClusterStatus, Done]:
        """Send the status at each change; see `WatchRequest`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout
        while True:
            with contextlib.suppress(asyncio.TimeoutError):  # while a plan is executed, tasks that it stops look failed
                await asyncio.wait_for(self._wait_idle(), deadline - loop.time())
            seen = self._supervisor.changed.count
            yield self._context.status()
            try:
                await asyncio.wait_for(self._supervisor.changed.wait_for_change(seen), deadline - loop.time())
            except asyncio.TimeoutError:
                yield Reply(Done())
                return

    async def devices(self, request: DevicesRequest) -> Response[NoReturn, DevicesReply]:
        """Ask all tasks for their devices."""
        self._supervisor.require_cluster()
        devices, silent = await self._supervisor.health.list_devices(settings.DEVICE_LIST_SECONDS)
        yield Reply(DevicesReply(tuple(devices), tuple(silent)))

    async def restart(self, request: RestartRequest) -> Response[NoReturn, Done]:
        """Restart tasks; see `RestartRequest`."""
        self._context.reject_if_going_down()
        topology = self._supervisor.require_cluster()
        names = {task.short: task.name for task in topology.on(self._supervisor.host)}
        self._supervisor.restart([names[short] for short in matching_tasks(request.tasks, list(names))], request.grace)
        yield Reply(Done())
