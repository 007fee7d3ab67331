"""The socket connection to an agent that the local and the ssh transport have in common."""

from __future__ import annotations

import contextlib
import select
import socket

from tfcluster.errors import ClusterError


class SocketChannel:
    """Implements the part of `Channel` that does not depend on the transport.

    Args:
        connection: A connected socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, data: bytes) -> bool:
        """See `Channel.send`."""
        try:
            self._connection.sendall(data)
        except ConnectionError:
            return False
        return True

    def wait_readable(self, seconds: float | None, *fds: int) -> bool:
        """See `Channel.wait_readable`."""
        own = self._connection.fileno()
        return own in select.select([own, *fds], [], [], seconds)[0]

    def receive(self, timeout: float | None) -> bytes:
        """See `Channel.receive`."""
        if not select.select([self._connection], [], [], timeout)[0]:
            raise self.timeout_error(f"{timeout:g} s")
        try:
            return self._connection.recv(1 << 16)
        except ConnectionError:
            return b""

    def timeout_error(self, time: str) -> ClusterError:
        """Return the error for an agent that has not sent anything for some time.

        Args:
            time: The time that has passed, such as `5 s`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """See `Channel.close`."""
        with contextlib.suppress(OSError):  # it may be closed already
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that is receiving
        self._connection.close()
