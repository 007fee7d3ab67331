"""The agent's client of the fork server, the process that forks the drivers of runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tfcluster.agent import subprocesses
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.paths import code_cache
from tfcluster.processes.runs import fork_server
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.protocol.codec import Message
from tfcluster.protocol.serialization import to_json


class ForkServer:
    """Starts the fork server and has it fork drivers.

    The fork server is started when the cluster is ready or at the first run, and restarted after it died.

    Args:
        log: The file that receives the fork server's output.
        on_message: Called with each message about a run; see `tfcluster.processes.runs.fork_server`.
        on_exit: Called when the fork server has exited. Its drivers keep running.
    """

    def __init__(
        self, title: str, log: Path, on_message: Callable[[Message], None], on_exit: Callable[[], None]
    ) -> None:
        self.log = log
        self._title = title
        self._on_message = on_message
        self._on_exit = on_exit
        self._child: ChildProcess | None = None

    def start(self) -> ChildProcess:
        """Start the fork server unless it runs already, so that TensorFlow is imported before the next run.

        Raises:
            OSError: The fork server cannot be forked.
        """
        if self._child is None:
            launch = partial(fork_server.launch, self._title, os.getpid(), self.log, code_cache())
            child = subprocesses.fork_child(launch, lambda status: None)
            child.on_message(self._on_message, partial(self._handle_exit, child))
            self._child = child
        return self._child

    def spawn_driver(self, plan: RunPlan) -> None:
        """Have the fork server fork a driver for a run."""
        self.start().send(to_json(plan))

    def kill_if_stopped(self) -> int | None:
        """Kill the fork server if a signal such as SIGSTOP has stopped it; return its pid, else None.

        While it is stopped, it would fork no more drivers.
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
            self._child.wait()

    def _handle_exit(self, child: ChildProcess) -> None:
        if self._child is child:
            self._child = None
        self._on_exit()
