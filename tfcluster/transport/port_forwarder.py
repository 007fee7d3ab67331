"""Forward a port of a host to this machine where ssh does not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from tfcluster import settings
from tfcluster.errors import ClusterError


@contextlib.contextmanager
def forward_port(local: int, dial: Callable[[], socket.socket]) -> Iterator[None]:
    """Forward a port of the loopback device until the context is left; `dial` connects to the port of the host.

    If that raises a ClusterError, the browser sees that its connection is closed.
    """
    with socket.create_server(("127.0.0.1", local)) as listener:
        forwarder = _PortForwarder(listener, dial)
        threading.Thread(target=forwarder.accept, daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # without it, accept() would continue to wait
            forwarder.close()


class _PortForwarder:
    def __init__(self, listener: socket.socket, dial: Callable[[], socket.socket]) -> None:
        self._listener = listener
        self._dial = dial
        self._open: set[socket.socket] = set()

    def accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener has been closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=[connection], daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ClusterError), self._dial() as other:
            self._open.add(other)
            threading.Thread(target=_copy, args=[connection, other], daemon=True).start()
            _copy(other, connection)
            self._open.discard(other)

    def close(self) -> None:
        """End all connections."""
        for other in [*self._open]:
            with contextlib.suppress(OSError):  # it has ended
                other.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(settings.IO_BLOCK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
