"""What the transports to agents have in common: the connection to an agent, and the interface to a host."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import running_clusters

if TYPE_CHECKING:
    from tfcluster.transport.dry_run_probe import Probe
    from tfcluster.transport.ssh import HostReport


class HostUnreachableError(ClusterError):
    """A host cannot be reached.

    Args:
        host: The name of the host in the cluster.
        why: The reason, without the host's name.
        hint: What the user can type or change to fix it.
    """

    def __init__(self, host: str, why: str, hint: str = "") -> None:
        super().__init__(f"host {host!r} cannot be reached: {why}", hint=hint, exit_code=ExitCode.UNREACHABLE)
        self.host = host


def readable_fds(fds: Iterable[int], seconds: float | None) -> set[int]:
    """Wait until a descriptor is readable or its other end is closed.

    Unlike select.select, this works for descriptors above 1023 too.

    Args:
        fds: The descriptors.
        seconds: The maximum time to wait; None for no limit.

    Returns:
        The descriptors for which this is the case; empty if the time has passed.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else 1000 * seconds)}


class Channel:
    """A byte stream between a command and an agent: the agent's Unix socket, which ssh forwards from other hosts.

    Args:
        connection: A connected socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        weakref.finalize(self, connection.close)
        self._is_at_end = False

    def send(self, data: bytes) -> bool:
        """Send data.

        Returns:
            False if the agent has closed the connection. `receive` detects that too.
        """
        try:
            self._connection.sendall(data)
        except ConnectionError:
            return False
        return True

    def wait_readable(self, seconds: float | None, *fds: int) -> bool:
        """Wait until the agent has sent something or has closed the connection, or until a descriptor is readable.

        Args:
            seconds: The maximum time to wait; None for no limit.
            *fds: Other descriptors to wait for.

        Returns:
            Whether the agent has sent something or has closed the connection.
        """
        own = self._connection.fileno()
        return own in readable_fds([own, *fds], seconds)

    def receive(self, timeout: float | None) -> bytes:
        """Wait for data and return it.

        Args:
            timeout: The maximum time to wait in seconds, or None to wait without a limit.

        Returns:
            What has arrived; empty if the agent closed the connection or died.

        Raises:
            ClusterError: Nothing arrived within `timeout` seconds.
        """
        if not self.wait_readable(timeout):
            raise self.timeout_error(f"{timeout:g} s")
        try:
            data = self._connection.recv(settings.IO_BLOCK_BYTES)
        except ConnectionError:
            data = b""
        self._is_at_end = not data
        return data

    def is_refused(self, timeout: float) -> bool:
        """Wait for the first byte from the agent, without receiving it.

        Args:
            timeout: The maximum time to wait in seconds.

        Returns:
            True if the connection was closed before anything arrived.

        Raises:
            ClusterError: Nothing happened within `timeout` seconds.
        """
        if not self.wait_readable(timeout):
            raise self.timeout_error(f"{timeout:g} s")
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def close(self) -> None:
        """Hang up: nothing more is sent, and what still arrives is ignored.

        The socket stays open as long as this object, so that `wait_for_end` can notice the agent's exit.
        """
        with contextlib.suppress(OSError):  # the agent has closed the connection
            self._connection.shutdown(socket.SHUT_WR)

    def wait_for_end(self, timeout: float) -> bool:
        """Wait until the agent's process has exited, after `close`.

        An agent that is about to exit does not close its connections: the kernel does, once the process is gone.

        Args:
            timeout: The maximum time to wait in seconds.

        Returns:
            False if the wait timed out. True if the process has exited, or has closed the connection because it does
            not exit.

        Raises:
            HostUnreachableError: The connection to the host broke.
        """
        deadline = time.monotonic() + timeout
        while not self._is_at_end:
            if not self.wait_readable(max(0.0, deadline - time.monotonic())):
                return False
            self.receive(0.0)
        return True

    def timeout_error(self, duration: str) -> ClusterError:
        """Return the error for an agent that has not sent anything for some time.

        Args:
            duration: The time that has passed, such as `5 s`.
        """
        raise NotImplementedError


class HostTransport(Protocol):
    """The transport to the agent of one cluster on one host.

    Attributes:
        cluster: The cluster's name.
        host: The host's name.
        is_remote: A connection can break while the agent continues, because a network is in between.
    """

    cluster: str
    host: str
    is_remote: bool

    def examine(self) -> HostReport | None:
        """Prepare the host for an agent: run the setup commands that the spec lists for it, once, and examine it.

        Returns:
            The report, also of a host that cannot be reached; None for this machine, which needs no preparation.
        """

    def probe(self) -> tuple[HostReport | None, Probe | None]:
        """Start the dry-run preflight of the host, which changes nothing there.

        Returns:
            The report (None for this machine), and a probe process on the host that answers further requests, which
            the caller closes; None if none could be started there.

        Raises:
            ClusterError: No process could be started on this machine.
        """

    def open(self, *, start: bool) -> Channel:
        """Connect to the agent, and send the greeting of the protocol.

        If the agent has died while its cluster is up, start a new one, which adopts the cluster. If the cluster turns
        out not to be up, close what is shared between commands.

        Args:
            start: Start an agent if there is none, even if the cluster is not up.

        Returns:
            The connection. The first line to be received is the agent's greeting.

        Raises:
            ClusterError: There is no agent, or none could be started.
            HostUnreachableError: The host cannot be reached. This is detected in bounded time.
        """

    def is_up(self) -> bool:
        """Return whether the cluster is up on the host, whether or not its agent is alive.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """

    def has_state(self) -> bool:
        """Return whether the cluster is up on the host or has left runs and logs there.

        If neither is the case, close what is shared between commands.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """

    def command_line(self, words: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return the command line on this machine that runs a command on the host, with the streams of this process.

        Args:
            words: The words of the command.
            is_terminal: Give the command a terminal; on this machine it has that of this process.
        """

    def forward_port(self, local: int, remote: int) -> AbstractContextManager[None]:
        """Forward a port of this machine's loopback device to one of the host's, until the context is left.

        Args:
            local: The port here.
            remote: The port there.

        Raises:
            ClusterError: It cannot be forwarded.
        """

    def disconnect(self) -> None:
        """Close what is shared between commands, after the cluster has been shut down.

        This never fails and does not interrupt other commands.
        """


def not_running(cluster: str) -> ClusterError:
    """Return the error that a cluster does not exist or is down."""
    others = [name for name in running_clusters() if name != cluster]
    choice = f"choose one that is running with -c: {', '.join(others)}" if others else "choose another with -c NAME"
    return ClusterError(
        f"cluster {cluster!r} is not running",
        hint=f"Start it with `tfcluster up`, or {choice}.",
        exit_code=ExitCode.NOT_RUNNING,
    )
