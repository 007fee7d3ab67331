"""A cluster whose journal is damaged or missing: the agent can only stop its processes."""

from __future__ import annotations

import asyncio
from typing import Any

from tfcluster.agent.process_marks import end_processes
from tfcluster.agent.state_dir import StateDir
from tfcluster.core.states import ClusterState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.errors import ClusterError
from tfcluster.process_handle import mark_of, marked_processes
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import DownReply, DownRequest


class UnreadableCluster:
    """Handles requests in place of the agent's other handlers.

    Args:
        cluster: The cluster's name.
        host: The cluster's name for this host.
        folder: The cluster's state directory on this host.
        problem: Why the journal cannot be read.
        quitting: Set when the agent has nothing left to do.

    Attributes:
        is_down: Whether all processes have stopped and the journal is removed.
    """

    def __init__(
        self, cluster: str, host: str, folder: StateDir, problem: ClusterError, quitting: asyncio.Event
    ) -> None:
        self.is_down = False
        self._cluster = cluster
        self._host = host
        self._folder = folder
        self._problem = problem
        self._quitting = quitting
        self._stopping: asyncio.Task[int] | None = None

    @property
    def is_stopping(self) -> bool:
        """Return whether processes are being stopped, even if the command that requested it has disconnected."""
        return self._stopping is not None and not self._stopping.done()

    async def refuse(self) -> Response[Any, Any]:
        """Reject a request.

        Raises:
            ClusterError: Always.
        """
        raise self._problem
        yield  # makes this function an async generator

    async def down(self, request: DownRequest) -> Response[ClusterStatus, DownReply]:
        """Stop every process that has the cluster's mark, and remove the journal.

        This continues if the command that requested it dies. The reply has a warning.
        """
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(request.grace))
        # Yield at once: the command's timeout applies until the first message only.
        yield self._status()
        await asyncio.wait({self._stopping})
        stopped = _processes(self._stopping.result())
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
        mark, count = mark_of(self._folder.path), 0
        try:
            while processes := marked_processes(mark):  # a process may have forked another one in the meantime
                count += await end_processes(processes, grace)
            self._folder.journal.remove()
            self.is_down = True
        except OSError as error:
            raise ClusterError(
                f"{_processes(count)} of {self._cluster!r} stopped, but {self._folder.path} cannot be cleared: "
                f"{error.strerror}",
                hint="Make it writable and type `tfcluster down` again.",
            ) from error
        finally:
            self._quitting.set()
        return count

    def _status(self) -> ClusterStatus:
        """Return the status of the cluster, without tasks: nothing is known of them."""
        hosts = (HostStatus(self._host, "up", None, None),)
        return ClusterStatus(self._cluster, ClusterState.DEGRADED, "", hosts, (), ())


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
