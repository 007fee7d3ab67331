"""Connections that have reached a forwarder's TLS port, until they have proved that they come from the cluster.

They cost no thread. Each has to be done in some seconds; a new one replaces the oldest of its address, or of all, when
there are too many, so that connections of non-members do not keep hosts from connecting.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
import struct
import time
from pathlib import Path

from tfcluster import settings
from tfcluster.processes.forwarder.refusal_log import ForwarderLog, explain

_PORT = struct.Struct("!H")
_BEGIN = "-----BEGIN CERTIFICATE-----"
_MAPPED = "::ffff:"  # an IPv4 address of a socket for both families
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TOO_MANY = "its handshake is not completed, and newer connections take its place"


def accept(listener: socket.socket) -> tuple[socket.socket, str] | None:
    """Accept a connection, and return it with its address; None if there is none, or no descriptor is left for it.

    In that case it returns after a moment: the connection stays in the queue, so that `poll` reports it at once again.

    The listener must not block.
    """
    try:
        connection, (address, *_) = listener.accept()
    except OSError as error:
        if error.errno in _EXHAUSTED:
            time.sleep(settings.FORWARD_EXHAUSTED_SECONDS)
        return None  # else the other side has given up
    return connection, address.removeprefix(_MAPPED)


def make_context(certificate: Path, *, is_server: bool) -> ssl.SSLContext:
    """Return the settings of TLS connections between forwarders: both sides need a certificate of the cluster.

    `certificate` is the file with the host's private key, its certificate and the cluster's authority, in this order.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificates have the cluster's names for hosts: see `peer_of`
    context.verify_mode = ssl.CERT_REQUIRED
    if is_server:
        context.num_tickets = 0  # what a client has not read when it closes the connection would reset it
    context.load_cert_chain(certificate)
    text = certificate.read_text()
    context.load_verify_locations(cadata=text[text.rindex(_BEGIN) :])
    return context


def peer_of(connection: ssl.SSLSocket) -> str:
    """Return the cluster's name for the host at the other end, as its certificate has it."""
    names = (connection.getpeercert() or {}).get("subjectAltName", ())
    return next((str(each[1]) for each in names if each[0] == "DNS"), "")


def request(connection: ssl.SSLSocket, port: int) -> None:
    """Ask the forwarder at the other end to connect to the port of a task.

    Raises:
        OSError: The connection is lost, or the other side does not accept this host's certificate.
    """
    connection.sendall(_PORT.pack(port))


def _has_hung_up(error: Exception) -> bool:
    """Return whether the other side has given up by itself, as one that only tries whether a port is open."""
    is_disconnected = isinstance(error, OSError) and error.errno == errno.ENOTCONN
    return is_disconnected or isinstance(error, (ConnectionError, ssl.SSLEOFError))


class _Admission:
    """A connection that is not admitted yet."""

    def __init__(self, connection: ssl.SSLSocket, address: str) -> None:
        self.connection = connection
        self.address = address
        self.deadline = time.monotonic() + settings.LINK_CONNECT_SECONDS
        self._is_proved = False
        self._received = b""

    def advance(self) -> int | None:
        """Read what has arrived; return the port that is asked for, and None until then.

        Raises:
            OSError: The other side is no host of the cluster, or has closed the connection.
        """
        try:
            if not self._is_proved:
                self.connection.do_handshake()
                self._is_proved = True
            data = self.connection.recv(_PORT.size - len(self._received))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):  # what a handshake writes fits into any socket's buffer
            return None
        if not data:
            raise ConnectionAbortedError("the other side has closed the connection")
        self._received += data
        if len(self._received) < _PORT.size:
            return None
        port: int = _PORT.unpack(self._received)[0]
        return port


class Admissions:
    """The connections that are not admitted yet.

    `poll` watches their descriptors, whose events are passed to `advance`.
    """

    def __init__(self, poll: select.poll, log: ForwarderLog) -> None:
        self._poll = poll
        self._log = log
        self._waiting: dict[int, _Admission] = {}  # the oldest first

    def __contains__(self, fd: int) -> bool:
        return fd in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Accept a connection, if there is one.

        The listener must not block.
        """
        if (accepted := accept(listener)) is None:
            return
        connection, address = accepted
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._make_room(address)
        try:
            tls = context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=False
            )
        except OSError:  # it is closed already
            connection.close()
            return
        self._waiting[tls.fileno()] = _Admission(tls, address)
        self._poll.register(tls, select.POLLIN)

    def advance(self, fd: int) -> tuple[ssl.SSLSocket, str, int] | None:
        """Read what a connection has sent; return it, its address and the port that it asks for when it is admitted."""
        admission = self._waiting[fd]
        try:
            port = admission.advance()
        except (OSError, ValueError) as error:  # ValueError: a certificate that cannot be decoded
            if _has_hung_up(error):
                self._close(fd)
            else:
                self._refuse(fd, explain(error))
            return None
        if port is None:
            return None
        self._forget(fd)
        return admission.connection, admission.address, port

    def expire(self) -> float | None:
        """Refuse the connections whose time is over; return the seconds until that of the next one, if there is one."""
        while self._waiting:
            fd = next(iter(self._waiting))
            seconds = self._waiting[fd].deadline - time.monotonic()
            if seconds > 0:
                return seconds
            self._refuse(fd, f"it has not completed its handshake within {settings.LINK_CONNECT_SECONDS:g} s")
        return None

    def _make_room(self, address: str) -> None:
        same = [fd for fd, each in self._waiting.items() if each.address == address]
        if len(same) >= settings.FORWARD_ADMISSIONS_MAX // 8:
            self._refuse(same[0], _TOO_MANY)
        if len(self._waiting) >= settings.FORWARD_ADMISSIONS_MAX:
            self._refuse(next(iter(self._waiting)), _TOO_MANY)

    def _refuse(self, fd: int, reason: str) -> None:
        self._log.write_connection(f"refused {self._waiting[fd].address}: {reason}")
        self._close(fd)

    def _close(self, fd: int) -> None:
        connection = self._waiting[fd].connection
        self._forget(fd)
        with contextlib.suppress(OSError):
            connection.close()

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._waiting[fd]
