"""The RPC handler of views: `top`, the page and `status --watch` ask for the state of this host once a second."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import suppress
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.handlers.cluster import ClusterHandlers
from tfcluster.agent.logs.log_reader import RotatedLog
from tfcluster.agent.runs.reports import RunReports
from tfcluster.core.usage import HostUsage
from tfcluster.processes.groups.member_states import states_version
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.logs import ClusterEvent
from tfcluster.protocol.api.view import ViewReply, ViewRequest
from tfcluster.protocol.serialization import decode


class ViewHandler:
    """Answers views. A version of a part is that of this agent alone: the next one sends the part again."""

    def __init__(self, context: AgentContext, cluster: ClusterHandlers) -> None:
        self._context = context
        self._cluster = cluster
        self._reports = RunReports(context.runs)
        self._events = RotatedLog(context.state_dir.events)
        self._agent = secrets.token_hex(4)
        self._usage: HostUsage | None = None
        self._measured_at = -settings.LIVE_USAGE_SECONDS

    async def view(self, request: ViewRequest) -> Response[NoReturn, ViewReply]:
        """Return the parts of the state that the caller does not have; see `ViewRequest`."""
        self._context.supervisor.require_cluster()
        if "status" not in request.known:
            await self._wait_for_change()
        await self._measure()
        reports = await self._reports.refresh()
        topology = self._context.supervisor.require_cluster()  # the cluster can stop in the meantime
        versions = {
            "status": self._status_version(request.known.get("status")),
            "runs": f"{self._agent} {self._context.runs.changed.count}",
            "reports": f"{self._agent} {self._reports.version}",
        }
        new = {part for part, version in versions.items() if not version or request.known.get(part) != version}
        events, after = await self._read_events(request.after)
        yield Reply(
            ViewReply(
                versions,
                topology.generation,
                self._context.status() if "status" in new else None,
                self._usage if "status" in new else None,
                await self._reports.summaries() if "runs" in new else None,
                reports if "reports" in new else None,
                events,
                after,
            )
        )

    async def _wait_for_change(self) -> None:
        """Wait for the end of a change that is being made, but not for long: tasks that it stops look failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.LIVE_CHANGE_SECONDS):
                await self._cluster.wait_idle()

    async def _measure(self) -> None:
        if time.monotonic() - self._measured_at >= settings.LIVE_USAGE_SECONDS:
            await self._context.host_end.refresh()
            usage = await self._context.usage.read()  # requests that arrive at the same time share it
            self._measured_at, self._usage = time.monotonic(), usage

    def _status_version(self, known: str | None) -> str:
        """Return the version of the status; during a change, the known one, or one that is sent again after it."""
        if self._cluster.is_changing:
            return known or ""
        runs = self._context.runs
        members = [states_version(run.folder) for run in runs.runs.values() if run.is_active]
        counts = (self._context.supervisor.changed.count, runs.changed.count, self._measured_at, members)
        return f"{self._agent} {counts}"

    async def _read_events(self, after: int | None) -> tuple[tuple[ClusterEvent, ...], int]:
        end, events = self._events.end(), []
        if after is None or end - after > settings.LIVE_EVENTS_BYTES:
            after = await self._events.start_of_last(settings.LIVE_EVENTS, end, partial=False)
        for line in self._events.lines(min(after, end), end, partial=False):
            after = line.next_offset
            with suppress(ValueError):  # a full disk has truncated it
                events.append(decode(ClusterEvent, json.loads(line.text), lenient=True))
        return tuple(events), min(after, end)
