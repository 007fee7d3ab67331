"""A cluster whose journal cannot be understood: all that can be done with it is to stop its processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tfcluster.agent.journal import JournalError
from tfcluster.agent.process_marks import end_processes, mark_of, marked_processes
from tfcluster.agent.state_dir import StateDir
from tfcluster.core.states import ClusterState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import event, reply
from tfcluster.protocol.codec import Message


class UnreadableCluster:
    """Answers requests in place of the agent's service.

    Args:
        cluster: The cluster's name.
        host: What it calls this host.
        folder: Its state folder here.
        problem: What is wrong with the journal.
        quitting: Set when the agent has nothing left to do.

    Attributes:
        is_down: All processes are stopped, and the journal is removed.
    """

    def __init__(
        self, cluster: str, host: str, folder: StateDir, problem: JournalError, quitting: asyncio.Event
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
        """Whether processes are being stopped, for a command that may be gone."""
        return self._stopping is not None and not self._stopping.done()

    async def refuse(self) -> AsyncIterator[Message]:
        """Say what is wrong."""
        raise self._problem
        yield {}  # what makes it an iterator

    async def down(self, grace: float) -> AsyncIterator[Message]:
        """Stop every process that has the cluster's mark, and remove the journal; goes on if its command dies."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(grace))
        # At once: the command waits for as long as it takes after the first line only.
        yield event(self._status().to_json())
        await asyncio.wait({self._stopping})
        stopped = _processes(self._stopping.result())
        yield reply({"warning": f"{self._problem.message}; {stopped} of the cluster stopped all the same"})

    async def _stop(self, grace: float) -> int:
        """Stop the processes.

        Returns:
            How many ran.

        Raises:
            ClusterError: The journal cannot be removed.
        """
        mark, count = mark_of(self._folder.path), 0
        try:
            while processes := marked_processes(mark):  # one may have forked another meanwhile
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
        """What is known: nothing of the tasks."""
        hosts = (HostStatus(self._host, "up", None, None),)
        return ClusterStatus(self._cluster, ClusterState.DEGRADED, "", hosts, (), ())


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
