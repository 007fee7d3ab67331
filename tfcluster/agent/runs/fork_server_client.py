"""The agent's client of the fork server, the process that forks the drivers of runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from tfcluster import boot
from tfcluster.agent.helper_process import HelperProcess
from tfcluster.paths import code_cache
from tfcluster.processes.runs import fork_server
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.protocol.codec import Message
from tfcluster.protocol.serialization import to_json


class ForkServer(HelperProcess):
    """Starts the fork server and has it fork drivers.

    The fork server is started when the cluster is ready, so that TensorFlow is imported before the first run, or at the
    first run, and restarted after it died. While a signal has stopped it, it would fork no drivers.

    Args:
        log: The file that receives the fork server's output.
        on_message: Called with each message about a run; see `tfcluster.processes.runs.fork_server`.
        on_exit: Called when the fork server has exited. Its drivers keep running.
    """

    def __init__(
        self, title: str, log: Path, on_message: Callable[[Message], None], on_exit: Callable[[], None]
    ) -> None:
        super().__init__(title, log)
        self.log = log
        self._on_message = on_message
        self._on_exit = on_exit

    def spawn_driver(self, plan: RunPlan) -> None:
        """Have the fork server fork a driver for a run."""
        self.send(to_json(plan))

    def run(self, agent: socket.socket) -> None:
        """Replace the process, which is a fork of the agent, by a new interpreter that runs the fork server.

        A program ends with a regular shutdown of its interpreter, which destroys all objects in it. The agent's must
        not be among them.
        """
        os.set_inheritable(agent.fileno(), True)
        arguments = [self.title, str(agent.fileno()), str(code_cache())]
        boot.exec_function(fork_server.__name__, fork_server.main.__name__, arguments)

    def handle_message(self, message: Message) -> None:
        """Pass on a message about a run."""
        self._on_message(message)

    def handle_exit(self) -> None:
        """Tell that the fork server has exited."""
        self._on_exit()
