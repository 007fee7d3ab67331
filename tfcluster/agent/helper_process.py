"""A process that the agent forks for its own work, such as the log writer: started, adopted, restarted, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.subprocesses import ChildProcess, fork_child, watch_exit
from tfcluster.os.daemonize import detach, outlive_parent
from tfcluster.os.process_handle import ProcessHandle, send_signal
from tfcluster.protocol.codec import Message


class HelperProcess:
    """Has at most one process at a time. A subclass says what the process does, and how the agent reacts to it.

    `title` is that of the process, and `output` the file for its standard output and standard error; None for those of
    the agent.

    Attributes:
        outlives_agent: Whether the process outlives the agent; it does not begin its work before `release`.
        restarts: Whether the process is started again some time after it has exited.
        process: The process; None if there is none.
    """

    outlives_agent = False
    restarts = False

    def __init__(self, title: str, output: Path | None = None) -> None:
        self.title = title
        self.process: ProcessHandle | None = None
        self._output = output
        self._child: ChildProcess | None = None  # the process, if this agent has forked it
        self._pidfd: int | None = None  # of a process that an earlier agent has forked
        self._is_released = False
        self._timer: asyncio.TimerHandle | None = None

    def run(self, agent: socket.socket) -> None:
        """Do the work, in the process; `agent` is the connection to the agent."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the process, in it, as long as it has the descriptors of the agent."""

    def handle_start(self) -> None:
        """React to the start of the process."""

    def handle_message(self, message: Message) -> None:
        """React to a message of the process."""

    def handle_exit(self) -> None:
        """React to the exit of the process, unless `stop` has ended it."""

    def ensure_started(self) -> None:
        """Fork the process unless there is one.

        Raises:
            OSError: It cannot be forked.
        """
        if self.process is not None:
            return
        agent_pid = os.getpid()

        def body(agent: socket.socket) -> None:
            detach(self.title, log=self._output, keep=[agent.fileno()], parent=agent_pid)
            if self.outlives_agent:
                if not agent.recv(settings.IO_BLOCK_BYTES):
                    return  # no later agent would find this process
                outlive_parent()
            self.run(agent)

        child = fork_child(body, lambda status: None, self.prepare)
        self._child, self.process, self._is_released = child, child.process, False
        # The process has its end of the connection until it exits, and its last messages come before the end.
        child.on_message(self.handle_message, partial(self._handle_end, child.process))
        self.handle_start()

    def start_or_retry(self) -> None:
        """Fork the process unless there is one, and if that fails, try again after a time."""
        self._cancel_timer()
        try:
            self.ensure_started()
        except OSError:  # no process, memory or descriptor is left
            self.start_later(settings.HELPER_RESTART_SECONDS)

    def start_later(self, seconds: float) -> None:
        """Do `start_or_retry` after some time, in the event loop."""
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.start_or_retry)

    def watch(self, process: ProcessHandle) -> None:
        """Adopt a process that an earlier agent has forked.

        Raises:
            OSError: No descriptor is left to watch it.
        """
        self.process = process
        self._pidfd = watch_exit(process, lambda status: self._handle_end(process))

    def release(self) -> None:
        """Let a process begin that outlives the agent, as the next agent will find it."""
        if self._child is not None and not self._is_released:
            self._is_released = True
            self._child.send({})

    def send(self, message: Message) -> None:
        """Send a message to the process, which is forked first if there is none; see `ensure_started`."""
        self.ensure_started()
        assert self._child is not None, "no process that takes messages outlives its agent"
        self._child.send(message)

    def signal(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        pidfd = self._pidfd if self._child is None else self._child.pidfd
        if pidfd is not None:
            send_signal(pidfd, number)

    def kill(self) -> None:
        """Kill the process, if there is one."""
        self.signal(signal.SIGKILL)

    def kill_if_stopped(self) -> int | None:
        """Kill the process if a signal such as SIGSTOP has stopped it; return its pid in this case."""
        if self._child is None or not self._child.is_stopped():
            return None
        self.kill()
        return self._child.process.pid

    def stop(self) -> None:
        """Kill the process, and wait until it has exited if this agent has forked it; it is not started again."""
        self._cancel_timer()
        self.kill()
        child = self._child
        self._forget()
        if child is not None:
            child.wait()
            child.close_pipe()

    def _handle_end(self, process: ProcessHandle) -> None:
        if self.process != process:  # `stop` has ended it
            return
        self._forget()
        self.handle_exit()
        if self.restarts:
            self.start_later(settings.HELPER_RESTART_SECONDS)

    def _forget(self) -> None:
        self.process = self._child = self._pidfd = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
