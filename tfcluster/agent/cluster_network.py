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
from dataclasses import replace

from tfcluster.agent.subprocesses import HelperProcess
from tfcluster.core.topology import PRIVATE
from tfcluster.errors import ClusterError
from tfcluster.os import netns, procfs
from tfcluster.private_network import PrivateNetwork, explain_failure
from tfcluster.process_mark import marked_processes

_logger = logging.getLogger(__name__)


class ClusterNetwork(HelperProcess):
    """The network of the cluster's processes on this host; its own process is the holder.

    `private` is None if the processes are in this machine's network. `on_new_holder` is called when another process
    holds the private network, so that it is recorded.
    """

    outlives_agent = True

    def __init__(self, title: str, on_new_holder: Callable[[], None]) -> None:
        super().__init__(title)
        self.private: PrivateNetwork | None = None
        self._on_new_holder = on_new_holder
        self._fds: tuple[int, int] | None = None  # of the namespaces
        self._made = -1  # the pipe by which the first holder says whether it has made them

    def make(self) -> None:
        """Make a private network, which ends with this agent unless `release` is called.

        Raises ClusterError: the machine does not allow it. Raises OSError: the holder cannot be forked, or no
        descriptor is left.
        """
        reading, self._made = os.pipe()
        try:
            self.ensure_started()
        finally:
            os.close(self._made)
            with open(reading, "rb") as pipe:
                result = pipe.read()
        if self.process is None or result != b"0":
            self.stop()
            raise explain_failure(int(result or b"1"))
        user, net = (procfs.namespace(kind, self.process.pid) for kind in ("user", "net"))
        private = PrivateNetwork(self.process, user, net)
        try:
            self._fds = private.open(self.process)
        except OSError:
            self.stop()
            raise
        self.private = private  # only now: without the descriptors nothing could enter it

    def prepare(self) -> None:
        """Make the namespaces, in the first holder, or enter them, in a later one."""
        if self.private is not None:
            self.enter()
            return
        try:
            netns.make_namespaces()
            os.write(self._made, b"0")
        except OSError as error:
            os.write(self._made, str(error.errno).encode())
            os._exit(1)

    def run(self, agent: socket.socket) -> None:
        """Hold the network, in the process."""
        while True:
            signal.pause()

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
            self.watch(private.holder)
        self.ensure_held()

    def leave(self) -> None:
        """End the holder: from now on the processes are in this machine's network."""
        fds, self.private, self._fds = self._fds, None, None
        self.stop()
        for fd in fds or ():
            os.close(fd)

    def find(self, network: str) -> PrivateNetwork | None:
        """Return the network in which the processes of a cluster have to be; None for this machine's.

        Nothing of a private cluster may be started without it: its ports are not restricted otherwise. So this raises
        ClusterError if the private network is lost and could not be made again.
        """
        if network == PRIVATE and self.private is None:
            raise ClusterError(
                "the cluster's private network no longer exists, and this machine does not let the agent create "
                "another one",
                hint="`tfcluster doctor` shows what forbids it; then `tfcluster down` and `tfcluster up`.",
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
        if self.private is None or self.process is not None:
            return
        self.ensure_started()
        assert self.process is not None, "it has just been forked"
        self.private = replace(self.private, holder=self.process)
        self._on_new_holder()

    def handle_exit(self) -> None:
        """Fork another holder at once."""
        try:
            self.ensure_held()
        except (OSError, ClusterError) as error:  # the periodic check tries again
            _logger.warning("no process holds the private network: %s", error)
