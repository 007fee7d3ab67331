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
_NOTHING = memoryview(b"")


class _Outgoing:
    """The direction from the tasks of this host to the other host."""

    def __init__(self, plain: socket.socket, tls: ssl.SSLSocket) -> None:
        self._plain = plain
        self._tls = tls
        self._buffer = memoryview(bytearray(_LENGTH.size + settings.FORWARD_BLOCK_BYTES))
        self.unsent = _NOTHING
        self.has_ended = False

    def advance(self) -> bool:
        """Move what can be moved now; return whether anything was.

        Raises:
            OSError: A connection is lost.
        """
        if not self.unsent:
            if self.has_ended:
                return False
            try:
                count = self._plain.recv_into(self._buffer[_LENGTH.size :])
            except BlockingIOError:
                return False
            _LENGTH.pack_into(self._buffer, 0, count)
            self.unsent = self._buffer[: _LENGTH.size + count]
            self.has_ended = count == 0
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self.unsent = self.unsent[self._tls.send(self.unsent) :]
            return True
        return False


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

    def advance(self) -> bool:
        """Move what can be moved now; return whether anything was.

        Raises:
            OSError: A connection is lost.
        """
        if self.has_ended:
            return False
        if not self.unsent and not self._receive():
            return False
        while self.unsent and not self.has_ended:
            if self._remaining:
                try:
                    count = self._plain.send(self.unsent[: self._remaining])
                except BlockingIOError:
                    return False
                self._remaining -= count
                self.unsent = self.unsent[count:]
            else:
                self._read_length()
        return True

    def _receive(self) -> bool:
        """Fill the buffer: each call of OpenSSL returns one record, of 16 KiB at most."""
        if self._failure is not None:
            raise self._failure
        count = 0
        try:
            while count < len(self._buffer):
                received = self._tls.recv_into(self._buffer[count:])
                if received == 0:
                    raise ConnectionAbortedError("the other host has cut the connection")
                count += received
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._failure = error  # the end of this direction may be in what was received before
            if count == 0:
                raise
        self.unsent = self._buffer[:count]
        return count > 0

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


def pump(plain: socket.socket, tls: ssl.SSLSocket) -> None:
    """Move bytes in both directions until both have ended.

    Args:
        plain: The connection of this host's tasks.
        tls: The connection to the other host.

    Raises:
        OSError: A connection is lost: the other one has to be reset.
    """
    plain.setblocking(False)
    tls.setblocking(False)
    outgoing, incoming = _Outgoing(plain, tls), _Incoming(plain, tls)
    while not (outgoing.has_ended and incoming.has_ended and not outgoing.unsent):
        moved = outgoing.advance()
        if not (incoming.advance() or moved):
            _wait(plain, tls, outgoing, incoming)


def _wait(plain: socket.socket, tls: ssl.SSLSocket, outgoing: _Outgoing, incoming: _Incoming) -> None:
    """Wait until something can be moved.

    Raises:
        OSError: The connection of the tasks is lost.
    """
    reads, writes = not (outgoing.unsent or outgoing.has_ended), bool(incoming.unsent)
    poll = select.poll()
    if reads or writes or not outgoing.unsent:  # else its end would be reported again and again
        poll.register(plain, select.POLLIN * reads | select.POLLOUT * writes)
    receives, sends = not (incoming.unsent or incoming.has_ended), bool(outgoing.unsent)
    if receives or sends:
        poll.register(tls, select.POLLIN * receives | select.POLLOUT * sends)
    for fd, event in poll.poll():
        if fd == plain.fileno() and event & _FAILED and not (reads or writes):
            raise ConnectionResetError("the task has cut the connection")


def reset(connection: socket.socket) -> None:
    """Close a connection so that the other side notices that it was cut off, and did not end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
