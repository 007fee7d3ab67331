"""The agent's side of the fork server, in which drivers of runs are forked."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tfcluster.agent import subprocesses
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.processes import fork_server
from tfcluster.processes.run_driver import RunSpec
from tfcluster.protocol.codec import Message


class ForkServer:
    """Forked when the cluster is ready or at the first run, and again when it died.

    Args:
        title: What `ps` shows.
        log: Where its words go.
        heard: Called with each line about a run; see `runtime.fork_server`.
        died: Called when it has ended by itself; its drivers go on.
    """

    def __init__(self, title: str, log: Path, heard: Callable[[Message], None], died: Callable[[], None]) -> None:
        self.log = log
        self._title = title
        self._heard = heard
        self._died = died
        self._child: ChildProcess | None = None

    def warm_up(self) -> None:
        """Fork it, if it is not there, so that the next run finds TensorFlow imported.

        Raises:
            OSError: It cannot be forked.
        """
        if self._child is None:
            launch = partial(fork_server.launch, self._title, os.getpid(), self.log)
            child = subprocesses.fork_child(launch, lambda status: None)
            child.on_message(self._message, partial(self._ended, child))
            self._child = child

    def drive(self, job: RunSpec) -> None:
        """Have it fork a driver for a run.

        Raises:
            OSError: It is not there and cannot be forked.
        """
        self.warm_up()
        assert self._child is not None, "warm_up() has just seen to it"
        self._child.send(job.__dict__)

    def kill_if_stopped(self) -> int | None:
        """End it if a signal has stopped it: no run would get a driver. Returns its pid then, else None."""
        if self._child is None or not self._child.is_stopped():
            return None
        self._child.kill()
        return self._child.process.pid

    def kill(self) -> None:
        """End it; its drivers go on."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """End it and wait for its end."""
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
