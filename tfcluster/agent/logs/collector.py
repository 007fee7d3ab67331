"""The agent's side of the process that keeps what the tasks print."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from tfcluster.agent import subprocesses
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.core.topology import LogLimits
from tfcluster.processes.logs.log_writer import LogWriter, keep

_AGAIN_SECONDS = 0.5


class LogCollector:
    """Has a keeper process live as long as there are tasks.

    Args:
        title: What `ps` shows of it.
        folder: The cluster's state folder.
    """

    def __init__(self, title: str, folder: StateDir) -> None:
        self._title = title
        self._folder = folder
        self._limits = LogLimits()
        self._child: ChildProcess | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, limits: LogLimits) -> None:
        """Fork the keeper soon, after the tasks that wait for their own fork, and again whenever it ends.

        Args:
            limits: How much is kept; they replace earlier ones.
        """
        if self._child is None:
            self._limits = limits
            self._fork_in(0.0)
        elif limits != self._limits:
            self._limits = limits
            self._child.kill()

    def end_if_stopped(self) -> int | None:
        """End the keeper if a signal has stopped it: the spools would grow without bound; another follows.

        How much waits in the spools would not tell: as much as that waits for a keeper that is alive while a task
        prints at full speed, or while the disk is full, and another one would be no better.

        Returns:
            The pid of the keeper that was ended; None where nothing was to be done.
        """
        if self._child is None or not self._child.is_stopped():
            return None
        self._child.kill()
        return self._child.process.pid

    def stop(self) -> None:
        """End the keeper, keep what the tasks printed last, and remove what only a running cluster has."""
        if self._timer is not None:
            self._timer.cancel()
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.reap()
        if self._folder.log_buffers.exists():
            with contextlib.suppress(OSError):  # a full disk must not keep the cluster from going down
                LogWriter(self._folder.log_buffers, self._folder.logs, self._limits.size, self._limits.count).finish()

    def _fork_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fork)

    def _fork(self) -> None:
        folder, limits = self._folder, self._limits
        body = partial(
            keep, self._title, folder.log_buffers, folder.logs, limits.size, limits.count, folder.journal.path
        )
        try:
            self._child = subprocesses.fork_child(body, self._ended)
        except OSError:  # no process or no descriptor is left: what is printed waits in the spools
            self._fork_in(_AGAIN_SECONDS)

    def _ended(self, status: int) -> None:
        assert self._child is not None, "it has just ended"
        self._child.hang_up()
        self._child = None
        self._fork_in(_AGAIN_SECONDS)
