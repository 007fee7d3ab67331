"""A connection to an agent over a socket, whatever carries it."""

from __future__ import annotations

import select
import socket

from tfcluster.errors import ClusterError


class SocketChannel:
    """What every connection to an agent does alike; see `Channel`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, data: bytes) -> bool:
        """See `Channel.send`."""
        try:
            self._connection.sendall(data)
        except ConnectionError:
            return False
        return True

    def wait_readable_or(self, fd: int) -> bool:
        """See `Channel.wait_readable_or`."""
        ours = self._connection.fileno()
        return ours in select.select([ours, fd], [], [])[0]

    def wait_readable(self, seconds: float) -> bool:
        """See `Channel.wait_readable`."""
        return bool(select.select([self._connection], [], [], seconds)[0])

    def receive(self, timeout: float | None) -> bytes:
        """See `Channel.receive`."""
        if not select.select([self._connection], [], [], timeout)[0]:
            raise self.timeout_error(f"{timeout:g} s")
        try:
            return self._connection.recv(1 << 16)
        except ConnectionError:
            return b""

    def timeout_error(self, time: str) -> ClusterError:
        """What to say of an agent that has not said anything for some time."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Channel.close`."""
        self._connection.close()
