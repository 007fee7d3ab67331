"""RPC handlers of what views of a cluster show: its status, at once or at each change, and what it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

from tfcluster.agent.context import AgentContext
from tfcluster.agent.timeout import wait_for
from tfcluster.agent.usage import UsageMeter
from tfcluster.core.status import ClusterStatus
from tfcluster.core.usage import HostUsage
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.cluster import StatusRequest, UsageRequest, WatchRequest


class StatusHandlers:
    """Handles the requests that change nothing, and that views send again and again.

    `wait_idle` waits until no plan is being executed.
    """

    def __init__(self, context: AgentContext, wait_idle: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._supervisor = context.supervisor
        self._wait_idle = wait_idle
        self.meter = UsageMeter(context.cluster, context.supervisor, context.prober, context.runs)

    async def status(self, request: StatusRequest) -> Response[NoReturn, ClusterStatus]:
        """Return the status of the cluster."""
        yield Reply(self._context.recent_status())

    async def usage(self, request: UsageRequest) -> Response[NoReturn, HostUsage]:
        """Return what the agent and the tasks have used, and how busy the host is."""
        yield Reply(await self.meter.read())

    async def watch(self, request: WatchRequest) -> Response[ClusterStatus, Done]:
        """Send the status at each change; see `WatchRequest`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout
        while True:
            with suppress(asyncio.TimeoutError):  # while a plan is executed, tasks that it stops look failed
                await wait_for(self._wait_idle(), deadline - loop.time())
            counts = self._supervisor.changed.count, self._context.runs.changed.count
            yield self._context.status()
            try:
                await asyncio.sleep(min(self._context.status_interval, max(0.0, deadline - loop.time())))
                await wait_for(self._wait_for_change(*counts), deadline - loop.time())
            except asyncio.TimeoutError:
                yield Reply(Done())
                return

    async def _wait_for_change(self, of_tasks: int, of_runs: int) -> None:
        """Wait until there are more changes of tasks, or of runs, than these counts say."""
        waits = (
            self._supervisor.changed.wait_for_change(of_tasks),
            self._context.runs.changed.wait_for_change(of_runs),
        )
        pending = {asyncio.ensure_future(wait) for wait in waits}
        try:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pending:
                each.cancel()
