"""Shutdown of a cluster on this host: by `tfcluster down`, by an expired lease, or without a readable journal."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.state.journal import JournalError
from tfcluster.core.states import ClusterState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.core.text import pluralize
from tfcluster.errors import ClusterError
from tfcluster.process_handle import (
    ProcessHandle,
    mark_of,
    marked_processes,
    send_signal,
)
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import DownReply, DownRequest


class Shutdown:
    """Stops the cluster's runs and tasks and removes its journal.

    Args:
        context: The parts of the agent.
        abandon: Cancels the execution of a plan, if one is in progress.
    """

    def __init__(self, context: AgentContext, abandon: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._supervisor = context.supervisor
        self._abandon = abandon
        self._stopping: asyncio.Task[None] | None = None
        self._grace = 0.0  # seconds between SIGTERM and SIGKILL

    async def down(self, request: DownRequest) -> Response[ClusterStatus, DownReply]:
        """Stop all runs and tasks; see `DownRequest`."""
        self._supervisor.require_cluster()
        grace = request.grace
        if self._stopping is None:
            stopping = self._begin(grace)
        else:
            stopping = self._stopping
            self._grace = min(self._grace, grace)
            self._supervisor.shorten_grace(grace)
        async for _ in self._supervisor.changed.stream_until(stopping, self._context.status_interval):
            yield self._context.status()
        stopping.result()
        yield Reply(DownReply())

    def expire_lease(self) -> None:
        """Shut the cluster down if its lease has expired."""
        topology, lease = self._supervisor.topology, self._context.lease
        if topology is None or self._context.is_going_down or not lease.has_expired(topology.lease):
            return
        detail = f"no command for {topology.lease:g} s, the cluster's lease: its tasks on this host are being stopped"
        self._supervisor.history.record("lease-expired", detail=detail)
        self._begin(settings.STOP_GRACE_SECONDS)

    def _begin(self, grace: float) -> asyncio.Task[None]:
        self._grace = grace
        self._context.is_going_down = True
        self._stopping = asyncio.ensure_future(self._stop_all())
        return self._stopping

    async def _stop_all(self) -> None:
        try:
            await self._abandon()
            await self._context.runs.cancel_all()
            await self._supervisor.stop(self._grace)
            await self._context.notices.flush(settings.STOP_GRACE_SECONDS)
        except BaseException:
            self._reset()  # the remaining tasks stay supervised, and the next `down` tries again
            raise
        self._context.forwarder.stop()
        with suppress(OSError):  # `Agent.stop` tries again
            self._context.secrets.delete()
        # Without the journal every command sees the cluster as down, while the agent still stops its helper processes.
        try:
            self._context.state_dir.journal.remove()
        except OSError as error:
            # Keep the agent running: the journal would make the next agent start every task again.
            self._reset()
            cluster = self._supervisor.require_cluster().cluster
            raise ClusterError(
                f"all tasks of {cluster!r} are stopped, but {self._context.state_dir.path} cannot be cleared: "
                f"{error.strerror}",
                hint="Make it writable and type `tfcluster down` again.",
            ) from error
        self._supervisor.history.record("down")
        self._context.quitting.set()

    def _reset(self) -> None:
        self._stopping = None
        self._context.is_going_down = False


class UnreadableCluster:
    """A cluster whose journal is damaged or missing: handles all requests, but can only stop the cluster's processes.

    Args:
        context: The parts of the agent.
        problem: Why the journal cannot be read.

    Attributes:
        is_down: Whether all processes have stopped and the journal is removed.
    """

    def __init__(self, context: AgentContext, problem: ClusterError) -> None:
        self.is_down = False
        self._context = context
        self._problem = problem
        self._stopping: asyncio.Task[int] | None = None

    async def reject(self) -> Response[Any, Any]:
        """Reject a request.

        Raises:
            ClusterError: Always.
        """
        raise self._problem
        yield  # makes this function an async generator

    async def down(self, request: DownRequest) -> Response[ClusterStatus, DownReply]:
        """Stop every process that has the cluster's mark, and remove the journal.

        This continues if the command that requested it dies. The reply has a warning.

        Raises:
            JournalError: A newer version of tfcluster has written the journal.
        """
        if isinstance(self._problem, JournalError) and self._problem.is_newer:
            raise self._problem
        if self._stopping is None:
            self._context.is_killing_unrecorded = True  # also if the command disconnects
            self._stopping = asyncio.ensure_future(self._stop(request.grace))
        # Yield at once: the command's timeout applies until the first message only.
        yield self._status()
        await asyncio.wait({self._stopping})
        stopped = pluralize(self._stopping.result(), "process", "processes")
        yield Reply(DownReply(f"{self._problem.message}; {stopped} of the cluster stopped nevertheless"))

    async def _stop(self, grace: float) -> int:
        """Stop the processes and remove the journal.

        Args:
            grace: Seconds between SIGTERM and SIGKILL.

        Returns:
            The number of processes that were running.

        Raises:
            ClusterError: The journal cannot be removed.
        """
        state_dir, count = self._context.state_dir, 0
        mark = mark_of(state_dir.path)
        try:
            while processes := marked_processes(mark):  # a process may have forked another one in the meantime
                count += await end_processes(processes, grace)
            state_dir.journal.remove()
            self.is_down = True
        except OSError as error:
            stopped = f"{pluralize(count, 'process', 'processes')} of {self._context.cluster!r}"
            raise ClusterError(
                f"{stopped} stopped, but {state_dir.path} cannot be cleared: {error.strerror}",
                hint="Make it writable and type `tfcluster down` again.",
            ) from error
        finally:
            self._context.is_killing_unrecorded = False
            self._context.quitting.set()
        return count

    def _status(self) -> ClusterStatus:
        """Return the status of the cluster, without tasks: nothing is known of them."""
        hosts = (HostStatus(self._context.host, "up", None, None),)
        return ClusterStatus(self._context.cluster, ClusterState.DEGRADED, "", hosts, (), ())


async def end_processes(processes: Collection[ProcessHandle], grace: float) -> int:
    """Terminate processes and wait until they have exited.

    Sends SIGTERM to all of them, and SIGKILL to those that still run after the grace period.

    Args:
        processes: The processes.
        grace: Seconds between SIGTERM and SIGKILL.

    Returns:
        The number of processes that were running.
    """
    pidfds = [pidfd for process in processes if (pidfd := process.open()) is not None]
    try:
        running = list(pidfds)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pidfd in running:
                send_signal(pidfd, number)
                send_signal(pidfd, signal.SIGCONT)  # a stopped process does not handle SIGTERM
            while (running := _not_ended(running)) and (number is signal.SIGKILL or loop.time() < deadline):
                await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
    return len(pidfds)


def _not_ended(pidfds: Collection[int]) -> list[int]:
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    ended = {pidfd for pidfd, _ in poll.poll(0)}
    return [pidfd for pidfd in pidfds if pidfd not in ended]
