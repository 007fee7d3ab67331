"""The network that the cluster's processes on this host are in: this machine's, or a private one that the agent makes.

The agent itself stays outside. It holds descriptors of the private network's namespaces, with which a process that it
forks enters. A holder process keeps the namespaces when there is no agent, until the next agent adopts it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from tfcluster.agent import subprocesses
from tfcluster.core.topology import PRIVATE
from tfcluster.errors import ClusterError
from tfcluster.os import netns
from tfcluster.os.daemonize import detach, outlive_parent
from tfcluster.os.process_handle import ProcessHandle, send_signal
from tfcluster.private_network import PrivateNetwork, explain_failure
from tfcluster.process_mark import marked_processes

_logger = logging.getLogger(__name__)


class ClusterNetwork:
    """The network of the cluster's processes on this host.

    `private` is None if the processes are in this machine's network. `on_new_holder` is called when another process
    holds the private network, so that it is recorded.
    """

    def __init__(self, title: str, on_new_holder: Callable[[], None]) -> None:
        self.private: PrivateNetwork | None = None
        self._title = title
        self._on_new_holder = on_new_holder
        self._fds: tuple[int, int] | None = None  # of the namespaces
        self._holder: int | None = None  # its pidfd
        self._child: subprocesses.ChildProcess | None = None  # the holder, if this agent has forked it

    def make(self) -> None:
        """Make a private network, which ends with this agent unless `keep` is called.

        Raises:
            ClusterError: The machine does not allow it.
            OSError: The holder cannot be forked, or no descriptor is left.
        """
        reading, writing = os.pipe()

        def prepare() -> None:
            try:
                netns.make_namespaces()
                os.write(writing, b"0")
            except OSError as error:
                os.write(writing, str(error.errno).encode())
                os._exit(1)

        try:
            child = self._fork_holder(prepare)
        finally:
            os.close(writing)
            with open(reading, "rb") as pipe:
                result = pipe.read()
        if result != b"0":
            self._holder = self._child = None  # it exits; its pidfd is closed then
            child.close_pipe()
            raise explain_failure(int(result or b"1"))
        user, net = (os.stat(f"/proc/{child.process.pid}/ns/{kind}").st_ino for kind in ("user", "net"))
        self.private = PrivateNetwork(child.process, user, net)
        self._fds = self.private.open(child.process)

    def adopt(self, private: PrivateNetwork, mark: str) -> None:
        """Adopt the network that an earlier agent has made; if no process is in it any more, make another one.

        Raises what `make` raises.
        """
        for process in (private.holder, *marked_processes(mark)):
            with suppress(OSError):  # it has exited, or is elsewhere, as the log writer
                self._fds = private.open(process)
                break
        else:
            self.make()
            return
        self.private = private
        if private.holder.is_alive():
            self._holder = subprocesses.watch_exit(private.holder, lambda status: self._on_exit(private.holder))
        self.ensure_held()

    def keep(self) -> None:
        """Have the holder outlive this agent, once the next one can find it in the journal."""
        if self._child is not None:
            self._child.send({})

    def leave(self) -> None:
        """End the holder: from now on the processes are in this machine's network."""
        holder, child, fds = self._holder, self._child, self._fds
        self.private = self._holder = self._child = self._fds = None
        if holder is not None:
            send_signal(holder, signal.SIGKILL)
        if child is not None:
            child.close_pipe()
        for fd in fds or ():
            os.close(fd)

    def find(self, network: str) -> PrivateNetwork | None:
        """Return the network in which the processes of a cluster have to be; None for this machine's.

        Nothing of a private cluster may be started without it: its ports are not restricted otherwise. So this raises
        ClusterError if the private network is lost and could not be made again.
        """
        if network == PRIVATE and self.private is None:
            raise ClusterError(
                "the private network of the cluster is gone, and this machine does not let the agent make another one",
                hint="`tfcluster doctor` says what forbids it; then `tfcluster down` and `tfcluster up`.",
            )
        return self.private

    def enter(self) -> None:
        """Move a process that was just forked from the agent, and still has its descriptors, to the network.

        Raises OSError if it cannot be entered.
        """
        if self.private is not None and self._fds is not None:
            self.private.enter_opened(self._fds)

    def ensure_held(self) -> None:
        """Fork another holder if the network has none; raise OSError if it cannot be forked."""
        if self.private is None or self._holder is not None:
            return
        child = self._fork_holder(self.enter)
        self.private = PrivateNetwork(child.process, self.private.user, self.private.net)
        self._on_new_holder()

    def _fork_holder(self, prepare: Callable[[], None]) -> subprocesses.ChildProcess:
        agent_pid = os.getpid()

        def hold(agent: socket.socket) -> None:
            detach(self._title, keep=[agent.fileno()], parent=agent_pid)
            if agent.recv(1):
                outlive_parent()
                while True:
                    signal.pause()

        child = subprocesses.fork_child(hold, lambda status: self._on_exit(child.process), prepare)
        self._child, self._holder = child, child.pidfd
        return child

    def _on_exit(self, holder: ProcessHandle) -> None:
        if self.private is None or self.private.holder != holder:
            return
        if self._child is not None:
            self._child.close_pipe()
        self._holder = self._child = None
        try:
            self.ensure_held()
        except (OSError, ClusterError) as error:  # the periodic check tries again
            _logger.warning("no process holds the private network: %s", error)
