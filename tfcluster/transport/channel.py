"""The connection to an agent, which every transport opens."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.protocol.codec import Greeting, parse_greeting


def readable_fds(fds: Iterable[int], seconds: float | None) -> set[int]:
    """Wait until descriptors are readable or their other ends are closed; return these, or none after the time.

    Unlike select.select, this works for descriptors above 1023 too.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else 1000 * seconds)}


def set_send_timeout(connection: socket.socket, seconds: float) -> None:
    """Let connect() and send() fail with EAGAIN if an agent does not accept or read; recv() still blocks."""
    value = struct.pack("ll", *divmod(int(seconds * 1_000_000), 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def connect_unix(path: Path) -> socket.socket | None:
    """Connect to a Unix socket; return None if nothing listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def receive_line(connection: socket.socket, seconds: float) -> bytes:
    """Receive a line, and nothing after it; empty if the connection ends first. At the timeout raise a TimeoutError."""
    deadline, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n"):
        if not readable_fds([connection.fileno()], max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            arrived = connection.recv(settings.IO_BLOCK_BYTES, socket.MSG_PEEK)
            if not arrived:
                return b""
            line += connection.recv(arrived.find(b"\n") + 1 or len(arrived))
        except ConnectionError:
            return b""
    return line


class Channel:
    """A byte stream between a command and an agent: the agent's Unix socket, or what a link carries to another host's.

    The kernel or the link ends the connection if the other end cannot be reached any more.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        weakref.finalize(self, connection.close)
        self._is_at_end = False

    def send(self, data: bytes) -> bool:
        """Send data; return False if the agent has closed the connection, which `receive` detects too."""
        try:
            self._connection.sendall(data)
        except ConnectionError:
            return False
        return True

    def send_some(self, data: memoryview) -> int:
        """Send as much data as is taken at once; return its size: all of it if the agent has closed the connection."""
        try:
            return self._connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return len(data)

    def wait_readable(self, seconds: float | None, *fds: int, to_send: bool = False) -> bool:
        """Wait until the agent has sent something or hung up; return whether it has.

        The wait also ends when a descriptor is readable or, with `to_send`, when data can be sent.
        """
        own = self._connection.fileno()
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        poll.register(own, select.POLLIN | (select.POLLOUT if to_send else 0))
        ready = dict(poll.poll(None if seconds is None else 1000 * seconds))
        return bool(ready.get(own, 0) & ~select.POLLOUT)

    def receive(self, timeout: float | None) -> bytes:
        """Wait for data and return it, empty if the agent hung up or died; raise a ClusterError after the timeout."""
        if not self.wait_readable(timeout):
            raise self.timeout_error(f"{timeout:g} s")
        try:
            data = self._connection.recv(settings.IO_BLOCK_BYTES)
        except ConnectionError:
            data = b""
        self._is_at_end = not data
        return data

    def read_greeting(self, timeout: float) -> Greeting | None:
        """Wait for the agent's first line and return its content; the line stays to be received.

        Return None if the connection was closed first. At the timeout in seconds, a ClusterError is raised.
        """
        deadline = time.monotonic() + timeout
        while (remaining := deadline - time.monotonic()) > 0 and self.wait_readable(remaining):
            try:
                line, newline, _ = self._connection.recv(settings.IO_BLOCK_BYTES, socket.MSG_PEEK).partition(b"\n")
            except ConnectionError:
                return None
            if newline or not line:
                return parse_greeting(line) if newline else None
            time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)  # the rest of the line is on its way
        raise self.timeout_error(f"{timeout:g} s")

    def take_socket(self) -> socket.socket:
        """Return the socket, for something else to use: this channel does nothing with it any more."""
        return socket.socket(fileno=self._connection.detach())

    def close(self) -> None:
        """Hang up: nothing more is sent, and what still arrives is ignored.

        The socket stays open as long as this object, so that `wait_for_end` can notice the agent's exit.
        """
        with contextlib.suppress(OSError):  # the agent has closed the connection
            self._connection.shutdown(socket.SHUT_WR)

    def wait_for_end(self, timeout: float) -> bool:
        """Wait until the agent's process has exited, after `close`.

        An agent that is about to exit does not close its connections: the kernel does, once the process has ended.

        Return False after the timeout in seconds, True if the process has exited, or has closed the connection because
        it does not exit. Raises HostUnreachableError if the connection to the host breaks.
        """
        deadline = time.monotonic() + timeout
        while not self._is_at_end:
            if not self.wait_readable(max(0.0, deadline - time.monotonic())):
                return False
            self.receive(0.0)
        return True

    def timeout_error(self, duration: str) -> ClusterError:
        """Return the error for an agent that has not sent anything for some time, such as `5 s`."""
        raise NotImplementedError
