"""The agent's client of the fork server, the process that forks the drivers of runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tfcluster.agent import subprocesses
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.processes import fork_server
from tfcluster.processes.run_spec import RunSpec
from tfcluster.protocol.codec import Message


class ForkServer:
    """Starts the fork server and has it fork drivers.

    The fork server is started when the cluster is ready or at the first run, and restarted after it died.

    Args:
        title: The process title that `ps` shows.
        log: The file that receives the fork server's output.
        heard: Called with each message about a run; see `tfcluster.processes.fork_server`.
        died: Called when the fork server has exited. Its drivers keep running.

    Attributes:
        log: The file that receives the fork server's output.
    """

    def __init__(self, title: str, log: Path, heard: Callable[[Message], None], died: Callable[[], None]) -> None:
        self.log = log
        self._title = title
        self._heard = heard
        self._died = died
        self._child: ChildProcess | None = None

    def warm_up(self) -> None:
        """Start the fork server unless it runs already, so that TensorFlow is imported before the next run.

        Raises:
            OSError: The fork server cannot be forked.
        """
        if self._child is None:
            launch = partial(fork_server.launch, self._title, os.getpid(), self.log)
            child = subprocesses.fork_child(launch, lambda status: None)
            child.on_message(self._message, partial(self._ended, child))
            self._child = child

    def drive(self, job: RunSpec) -> None:
        """Have the fork server fork a driver for a run.

        Args:
            job: What the driver is to run.

        Raises:
            OSError: The fork server does not run and cannot be forked.
        """
        self.warm_up()
        assert self._child is not None, "warm_up() has just seen to it"
        self._child.send(asdict(job))

    def kill_if_stopped(self) -> int | None:
        """Kill the fork server if a signal such as SIGSTOP has stopped it, since it would fork no more drivers.

        Returns:
            The pid of the fork server that was killed, or None if it was not stopped.
        """
        if self._child is None or not self._child.is_stopped():
            return None
        self._child.kill()
        return self._child.process.pid

    def kill(self) -> None:
        """Kill the fork server. Its drivers keep running."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """Kill the fork server and wait until it has exited."""
        if self._child is not None:
            self._child.kill()
            self._child.reap()

    def _message(self, message: Message) -> None:
        if "run" in message:
            self._heard(message)

    def _ended(self, child: ChildProcess) -> None:
        if self._child is child:
            self._child = None
        self._died()
