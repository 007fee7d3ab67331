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
    sessions: set[Session] = set()
    with socket.create_server(("127.0.0.1", local)) as listener:
        threading.Thread(target=_accept, args=[listener, dial, sessions], daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # without it, accept() would continue to wait
            for session in list(sessions):
                session.end()


def _accept(listener: socket.socket, dial: Callable[[], Session], sessions: set[Session]) -> None:
    with contextlib.suppress(OSError):  # the listener has been closed
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_carry, args=[connection, dial, sessions], daemon=True).start()


def _carry(connection: socket.socket, dial: Callable[[], Session], sessions: set[Session]) -> None:
    with connection, contextlib.suppress(ClusterError):  # the browser sees that the connection was closed
        session = dial()
        sessions.add(session)
        threading.Thread(target=_copy, args=[connection, session.connection], daemon=True).start()
        _copy(session.connection, connection)
        sessions.discard(session)
        session.end()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(settings.IO_BLOCK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
