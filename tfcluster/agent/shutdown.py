"""Shutdown of a cluster on this host: by `tfcluster down`, by an expired lease, or without a readable journal."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.handlers.cluster import ClusterHandlers
from tfcluster.agent.state.journal import JournalError
from tfcluster.agent.subprocesses import survivors_error
from tfcluster.core.states import ClusterState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.errors import ClusterError
from tfcluster.os.file_lock import remove_unlocked
from tfcluster.os.process_handle import ProcessHandle, send_signal
from tfcluster.paths import LOCAL_HOST
from tfcluster.process_mark import describe_process, mark_of, marked_processes
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import DownReply, DownRequest
from tfcluster.runtime_dir import launch_lock


class Shutdown:
    """Stops the cluster's runs and tasks and removes its journal."""

    def __init__(self, context: AgentContext, cluster: ClusterHandlers) -> None:
        self._context = context
        self._supervisor = context.supervisor
        self._cluster = cluster
        self._stopping: asyncio.Task[None] | None = None
        self._grace = 0.0  # seconds between SIGTERM and SIGKILL
        self._unrecorded: list[str] = []  # the processes that were stopped although the journal did not record them

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
        yield Reply(DownReply(_describe_unrecorded(self._context.cluster, self._unrecorded)))

    def expire_lease(self) -> None:
        """Shut the cluster down if its lease has expired."""
        topology, lease = self._supervisor.topology, self._context.lease
        if topology is None or self._context.is_going_down or not lease.has_expired(topology.lease):
            return
        if any(run.is_active and run.record.is_part for run in self._context.runs.runs.values()):
            return  # the lease of the coordinator's host ends the group
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
            await self._cluster.abandon()
            await self._context.runs.cancel_all()
            try:
                await self._supervisor.stop(self._grace)
            finally:  # what SIGKILL does not end is an error, and keeps nothing else from being stopped
                self._unrecorded = await self._end_unrecorded()
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
        if self._context.host == LOCAL_HOST:
            remove_unlocked(launch_lock(self._context.cluster))
        self._context.quitting.set()

    async def _end_unrecorded(self) -> list[str]:
        """End the processes that the journal does not record, such as servers whose journal was lost earlier."""
        context = self._context
        private = context.network.private
        helpers = [context.forwarder.process, None if private is None else private.holder]  # `Agent.stop` ends them
        tasks = [task.process for task in self._supervisor.tasks.values()]
        unrecorded = await lasting_processes(mark_of(context.state_dir.path), known=[*helpers, *tasks])
        return await end_all(lambda: [each for each in unrecorded if each.is_alive()], context.cluster, self._grace)

    def _reset(self) -> None:
        self._stopping = None
        self._context.is_going_down = False


class UnreadableCluster:
    """A cluster whose journal is damaged or missing: it can only stop the cluster's processes.

    It handles all requests that need the journal.

    `is_down` tells whether all processes have stopped and the journal is removed.
    """

    def __init__(self, context: AgentContext, problem: ClusterError, *, is_missing: bool = False) -> None:
        self.is_down = False
        self._context = context
        self._problem = problem
        self._is_missing = is_missing
        self._stopping: asyncio.Task[list[str]] | None = None

    async def reject(self) -> Response[Any, Any]:
        """Reject a request: always raises ClusterError."""
        running = summarize_list([describe_process(each, self._context.cluster) for each in self._processes()])
        raise ClusterError(
            f"{self._problem.message}; still running: {running or 'nothing of the cluster'}", hint=self._problem.hint
        )
        yield  # makes this function an async generator

    async def down(self, request: DownRequest) -> Response[ClusterStatus, DownReply]:
        """Stop every process of the cluster, and remove the journal.

        This continues if the command that requested it dies. The reply has a warning. Raises JournalError if a newer
        version of tfcluster has written the journal.
        """
        if isinstance(self._problem, JournalError) and self._problem.is_newer:
            raise self._problem
        if self._stopping is None:
            self._context.is_killing_unrecorded = True  # also if the command disconnects
            self._stopping = asyncio.ensure_future(self._stop(request.grace))
        # Yield at once: the command's timeout applies until the first message only.
        yield self._status()
        await asyncio.wait({self._stopping})
        stopped = self._stopping.result()
        if self._is_missing:
            yield Reply(DownReply(_describe_unrecorded(self._context.cluster, stopped)))
        else:
            yield Reply(DownReply(f"{self._problem.message}; {_describe_stopped(self._context.cluster, stopped)}"))

    async def _stop(self, grace: float) -> list[str]:
        """Stop the processes and remove the journal; return the descriptions of the processes."""
        context, stopped = self._context, list[str]()
        try:
            stopped = await end_all(self._processes, context.cluster, grace)
            context.state_dir.journal.remove()
            self.is_down = True
        except OSError as error:
            raise ClusterError(
                f"{_describe_stopped(context.cluster, stopped)}, but {context.state_dir.path} cannot be cleared: "
                f"{error.strerror}",
                hint="Make it writable and type `tfcluster down` again.",
            ) from error
        finally:
            context.is_killing_unrecorded = False
            context.quitting.set()
        return stopped

    def _processes(self) -> list[ProcessHandle]:
        """Return the processes that have the cluster's mark, and those that the journal names, which may have none.

        The mark may be one of another version, for example, or the processes were started before there were marks.
        """
        state_dir = self._context.state_dir
        processes = {*marked_processes(mark_of(state_dir.path)), *state_dir.journal.processes()}
        return sorted(processes, key=lambda process: process.pid)

    def _status(self) -> ClusterStatus:
        """Return the status of the cluster, without tasks: nothing is known of them."""
        hosts = (HostStatus(self._context.host, "up", None, None),)
        return ClusterStatus(self._context.cluster, ClusterState.DEGRADED, "", hosts, (), ())


def _describe_stopped(cluster: str, processes: Sequence[str], more: str = "") -> str:
    count = pluralize(len(processes), "process", "processes")
    return f"stopped {count} of {cluster}{more}{': ' if processes else ''}{summarize_list(processes)}"


def _describe_unrecorded(cluster: str, processes: Sequence[str]) -> str | None:
    return _describe_stopped(cluster, processes, " that no journal recorded") if processes else None


async def lasting_processes(mark: str, known: Collection[ProcessHandle | None] = ()) -> list[ProcessHandle]:
    """Return the processes that have a mark, except those that are about to exit, as an earlier agent's helpers.

    `known` are processes to leave out.
    """
    processes = [process for process in marked_processes(mark) if process not in known]
    deadline = time.monotonic() + settings.UNRECORDED_EXIT_SECONDS
    while processes and time.monotonic() < deadline:
        await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
        processes = [process for process in processes if process.is_alive()]
    return processes


async def end_all(find: Callable[[], Sequence[ProcessHandle]], cluster: str, grace: float) -> list[str]:
    """End processes until none is found: one may have forked another one in the meantime.

    `find` returns the processes that run now; `grace` is the seconds between SIGTERM and SIGKILL. Returns the
    descriptions of the processes. Raises ClusterError if SIGKILL has not ended all of them, when no other is left.
    """
    ended: list[str] = []
    survivors: dict[ProcessHandle, str] = {}
    while processes := [process for process in find() if process not in survivors]:
        names = {process: describe_process(process, cluster) for process in processes}
        survivors |= {process: names[process] for process in await end_processes(processes, grace)}
        ended += names.values()
    if survivors:
        raise survivors_error([*survivors.values()], cluster)
    return ended


async def end_processes(processes: Collection[ProcessHandle], grace: float) -> list[ProcessHandle]:
    """Terminate processes and wait until they have exited; return those that still run some time after SIGKILL.

    Sends SIGTERM to all of them, and SIGKILL to those that still run after `grace` seconds.
    """
    opened = {pidfd: process for process in processes if (pidfd := process.open()) is not None}
    try:
        running = list(opened)
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, settings.KILL_SECONDS)):
            deadline = time.monotonic() + seconds
            for pidfd in running:
                send_signal(pidfd, number)
                send_signal(pidfd, signal.SIGCONT)  # a stopped process does not handle SIGTERM
            while (running := _not_ended(running)) and time.monotonic() < deadline:
                await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
        return [opened[pidfd] for pidfd in running]
    finally:
        for pidfd in opened:
            os.close(pidfd)


def _not_ended(pidfds: Collection[int]) -> list[int]:
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    ended = {pidfd for pidfd, _ in poll.poll(0)}
    return [pidfd for pidfd in pidfds if pidfd not in ended]
