"""Forward a port of a host to this machine where ssh does not: each connection is carried by a session on the host."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.transport.session import Session


@contextlib.contextmanager
def forward_port(local: int, dial: Callable[[], Session]) -> Iterator[None]:
    """Forward a port of the loopback device until the context is left; `dial` returns a session for a connection."""
    with socket.create_server(("127.0.0.1", local)) as listener:
        forwarder = _PortForwarder(listener, dial)
        threading.Thread(target=forwarder.accept, daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # without it, accept() would continue to wait
            forwarder.close()


class _PortForwarder:
    def __init__(self, listener: socket.socket, dial: Callable[[], Session]) -> None:
        self._listener = listener
        self._dial = dial
        self._is_closing = False
        self._carriers: list[threading.Thread] = []
        self._sessions: list[Session] = []  # each is ended by its carrier

    def accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener has been closed
            while True:
                connection, _ = self._listener.accept()
                self._carriers.append(threading.Thread(target=self._carry, args=[connection], daemon=True))
                self._carriers[-1].start()

    def _carry(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ClusterError):  # the browser sees that the connection was closed
            session = self._dial()
            self._sessions.append(session)
            try:
                if not self._is_closing:
                    threading.Thread(target=_copy, args=[connection, session.connection], daemon=True).start()
                    _copy(session.connection, connection)
            finally:
                self._sessions.remove(session)
                session.end()

    def close(self) -> None:
        """End all connections."""
        self._is_closing = True
        for session in [*self._sessions]:
            with contextlib.suppress(OSError):  # it has ended
                session.connection.shutdown(socket.SHUT_RDWR)
        for carrier in self._carriers:
            carrier.join(settings.SSH_EXIT_SECONDS)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(settings.IO_BLOCK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
