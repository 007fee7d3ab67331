"""Move bytes between a connection of this host's tasks and a TLS connection to another host's forwarder.

On the TLS connection each block of bytes follows its length, and a length of zero ends its direction: a connection can
be closed in one direction, as TCP's can, and one that ends without it was cut off.

One thread serves both directions of a connection, because OpenSSL forbids that two threads use it at the same time.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct

from tfcluster import settings

_LENGTH = struct.Struct("!I")
_FAILED = select.POLLERR | select.POLLHUP
_READABLE, _WRITABLE = select.POLLIN | _FAILED, select.POLLOUT | _FAILED
_NOTHING = memoryview(b"")
_RECORD_BYTES = 1 << 14  # of TLS, at most


class _Outgoing:
    """The direction from the tasks of this host to the other host."""

    def __init__(self, plain: socket.socket, tls: ssl.SSLSocket) -> None:
        self._plain = plain
        self._tls = tls
        self._buffer = memoryview(bytearray(_LENGTH.size + settings.FORWARD_BLOCK_BYTES))
        self.unsent = _NOTHING
        self.has_ended = False

    def advance(self) -> None:
        """Move what can be moved now, a block at most."""
        if not self.unsent:
            try:
                count = self._plain.recv_into(self._buffer[_LENGTH.size :])
            except BlockingIOError:
                return
            _LENGTH.pack_into(self._buffer, 0, count)
            self.unsent = self._buffer[: _LENGTH.size + count]
            self.has_ended = count == 0
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self.unsent = self.unsent[self._tls.send(self.unsent) :]


class _Incoming:
    """The direction from the other host to the tasks of this one."""

    def __init__(self, plain: socket.socket, tls: ssl.SSLSocket) -> None:
        self._plain = plain
        self._tls = tls
        self._buffer = memoryview(bytearray(settings.FORWARD_BLOCK_BYTES))
        self.unsent = _NOTHING
        self._header = b""
        self._failure: OSError | None = None
        self._remaining = 0  # of the block whose length was read
        self.has_ended = False

    @property
    def has_more(self) -> bool:
        """Whether there is something to be received that the kernel has handed over already."""
        return self._failure is not None or self._tls.pending() > 0

    def advance(self) -> None:
        """Move what can be moved now, a block at most."""
        if not self.unsent:
            self._receive()
        while self.unsent and not self.has_ended:
            if self._remaining:
                try:
                    count = self._plain.send(self.unsent[: self._remaining])
                except BlockingIOError:
                    return
                self._remaining -= count
                self.unsent = self.unsent[count:]
            else:
                self._read_length()

    def _receive(self) -> None:
        """Fill the buffer: each call of OpenSSL returns one record, and a short one is mostly the last one."""
        if self._failure is not None:
            raise self._failure
        count = 0
        try:
            while count < len(self._buffer):
                received = self._tls.recv_into(self._buffer[count:])
                if received == 0:
                    raise ConnectionAbortedError("the other host has cut the connection")
                count += received
                if received < _RECORD_BYTES:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._failure = error  # the end of this direction may be in what was received before
            if count == 0:
                raise
        self.unsent = self._buffer[:count]

    def _read_length(self) -> None:
        missing = _LENGTH.size - len(self._header)
        self._header += self.unsent[:missing]
        self.unsent = self.unsent[missing:]
        if len(self._header) == _LENGTH.size:
            (self._remaining,) = _LENGTH.unpack(self._header)
            self._header = b""
            if not self._remaining:
                self.has_ended = True
                self._plain.shutdown(socket.SHUT_WR)


class _Readiness:
    """Waits until one of the directions can move something."""

    def __init__(self, plain: socket.socket, tls: ssl.SSLSocket) -> None:
        self._plain = plain
        self._tls = tls
        self._poll = select.poll()
        self._events: dict[socket.socket, int | None] = {plain: None, tls: None}  # that are watched

    def wait(self, outgoing: _Outgoing, incoming: _Incoming) -> tuple[bool, bool]:
        """Wait, and return which of the directions are to advance."""
        reads, writes = not (outgoing.unsent or outgoing.has_ended), bool(incoming.unsent)
        receives, sends = not (incoming.unsent or incoming.has_ended), bool(outgoing.unsent)
        # With nothing to be read or written its end would be reported again and again.
        is_watched = reads or writes or not sends
        self._watch(self._plain, select.POLLIN * reads | select.POLLOUT * writes if is_watched else None)
        self._watch(self._tls, select.POLLIN * receives | select.POLLOUT * sends if receives or sends else None)
        is_known = receives and incoming.has_more  # the kernel does not know of it
        events = dict(self._poll.poll(0 if is_known else None))
        plain, tls = events.get(self._plain.fileno(), 0), events.get(self._tls.fileno(), 0)
        if plain & _FAILED and not (reads or writes):
            raise ConnectionResetError("the task has cut the connection")
        can_send = tls & _WRITABLE if sends else reads and plain & _READABLE
        can_receive = plain & _WRITABLE if writes else is_known or (receives and tls & _READABLE)
        return bool(can_send), bool(can_receive)

    def _watch(self, connection: socket.socket, events: int | None) -> None:
        if events == self._events[connection]:
            return
        if events is None:
            self._poll.unregister(connection)
        else:
            self._poll.register(connection, events)
        self._events[connection] = events


def pump(plain: socket.socket, tls: ssl.SSLSocket) -> None:
    """Move bytes in both directions until both have ended.

    Raises:
        OSError: A connection is lost: the other one has to be reset.
    """
    plain.setblocking(False)
    tls.setblocking(False)
    outgoing, incoming, readiness = _Outgoing(plain, tls), _Incoming(plain, tls), _Readiness(plain, tls)
    while not (outgoing.has_ended and incoming.has_ended and not outgoing.unsent):
        can_send, can_receive = readiness.wait(outgoing, incoming)
        if can_send:
            outgoing.advance()
        if can_receive:
            incoming.advance()


def reset(connection: socket.socket) -> None:
    """Close a connection so that the other side notices that it was cut off, and did not end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
