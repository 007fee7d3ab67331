"""The forwarder: connects the tasks of a private cluster's hosts through one TLS port for each host.

All tasks of the cluster have the address `localhost` and a port of their own. Those of this host listen in its network
namespace themselves; for those of other hosts the forwarder does, and goes through TLS to the forwarder of that host,
which connects to the task. It reads what it does from a file, and again at each SIGHUP, so that connections survive a
change and the agent.

Connections that have not proved yet that they come from the cluster (`Admissions`) cost no thread. Each has to be done
in some seconds; a new one replaces the oldest of its address, or of all, when there are too many: connections of
non-members do not keep hosts from connecting. Non-members also control the number of lines in the log: equal lines are
written once per period, and the number of different lines is limited; the rest are only counted.

On the TLS connection each block of bytes follows its length, and a length of zero ends its direction: a connection can
be closed in one direction, as TCP's can, and one that ends without it was cut off. One thread serves both directions,
because OpenSSL forbids that two threads use a connection at the same time.

The process is outside of the namespace. A socket belongs to the namespace of the thread that creates it, so some
threads enter it; they never leave it again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import select
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

from tfcluster import settings
from tfcluster.core.forwarding import Forwarding
from tfcluster.core.text import pluralize
from tfcluster.os.daemonize import raise_descriptor_limit
from tfcluster.os.files import read_own_file
from tfcluster.os.network import bind_all_addresses, detect_loss
from tfcluster.private_network import PrivateNetwork, enter_network
from tfcluster.processes.logs.rotating_log import LineLog
from tfcluster.protocol.serialization import from_stored

#: What OpenSSL reports of a certificate that another authority than the cluster's has signed, or none at all.
_FOREIGN = frozenset({7, 18, 19, 20, 21, 24})  # X509_V_ERR_*, see x509_vfy.h
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "HTTP_REQUEST": "it does not speak TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
}


def explain(error: Exception) -> str:
    """Return why a connection was refused."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _FOREIGN:
            return f"its certificate is not from this cluster ({error.verify_message})"
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return _REASONS.get(error.reason, f"TLS: {error.reason.lower().replace('_', ' ')}")
    return str(error)


class ForwarderLog:
    """Writes the lines; several threads may use it."""

    def __init__(self, path: Path) -> None:
        self._lines = LineLog(path)
        self._lock = threading.Lock()
        self._period_end = 0.0
        self._written: set[str] = set()  # in this period
        self._omitted = 0  # in this period

    def write(self, message: str) -> None:
        """Write a line about this host: about a file that cannot be read, for example."""
        with self._lock:
            self._append(message)

    def write_connection(self, message: str) -> None:
        """Write a line about a connection, unless the same or too much was written just now."""
        with self._lock:
            self._expire()
            if message in self._written or len(self._written) >= settings.FORWARD_LOG_LINES_MAX:
                self._omitted += 1
                return
            if not self._written:
                self._period_end = time.monotonic() + settings.FORWARD_LOG_SECONDS
            self._written.add(message)
            self._append(message)

    def expire(self) -> float | None:
        """Write how many lines were left out, if it is time; return the seconds until then, if any were."""
        with self._lock:
            self._expire()
            return max(0.0, self._period_end - time.monotonic()) if self._omitted else None

    def _expire(self) -> None:
        if not self._written or time.monotonic() < self._period_end:
            return
        if self._omitted:
            lines = pluralize(self._omitted, "more line")
            self._append(f"{lines} like these in {settings.FORWARD_LOG_SECONDS:g} s")
        self._written.clear()
        self._omitted = 0

    def _append(self, text: str) -> None:
        self._lines.append(f"{text}\n".encode(errors="backslashreplace"), time.time())


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

    Raises OSError: a connection is lost: the other one has to be reset.
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
    text = read_own_file(certificate, settings.STATE_FILE_MAX_BYTES).decode()
    context.load_cert_chain(certificate)
    context.load_verify_locations(cadata=text[text.rindex(_BEGIN) :])
    return context


def peer_of(connection: ssl.SSLSocket) -> str:
    """Return the cluster's name for the host at the other end, as its certificate has it."""
    names = (connection.getpeercert() or {}).get("subjectAltName", ())
    return next((str(each[1]) for each in names if each[0] == "DNS"), "")


def request(connection: ssl.SSLSocket, port: int) -> None:
    """Ask the forwarder at the other end to connect to the port of a task.

    Raises OSError: the connection is lost, or the other side does not accept this host's certificate.
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

        Raises OSError: the other side is no host of the cluster, or has closed the connection.
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


class _Listeners:
    """The sockets that listen in the tasks' namespace for the tasks of other hosts.

    `namespace` is the descriptor of the network namespace of the tasks.
    """

    def __init__(self, poll: select.poll, namespace: int, log: ForwarderLog) -> None:
        self._poll = poll
        self._namespace = namespace
        self._log = log
        self._sockets: dict[int, socket.socket] = {}
        self._ports: dict[int, int] = {}  # by descriptor

    def __contains__(self, fd: int) -> bool:
        return fd in self._ports

    def set_ports(self, ports: Collection[int]) -> None:
        """Listen on exactly these ports; a port that is taken is left out, with a message."""
        for port in self._sockets.keys() - set(ports):
            listener = self._sockets.pop(port)
            del self._ports[listener.fileno()]
            self._poll.unregister(listener)
            listener.close()
        if missing := sorted(set(ports) - self._sockets.keys()):
            thread = threading.Thread(target=self._listen, args=(missing,))
            thread.start()
            thread.join()

    def accept(self, fd: int) -> tuple[socket.socket, int] | None:
        """Accept the connection to a descriptor's port, and return it and the port; None if there is none any more."""
        port = self._ports[fd]
        accepted = accept(self._sockets[port])
        return None if accepted is None else (accepted[0], port)

    def _listen(self, ports: Collection[int]) -> None:
        enter_network(self._namespace)
        for port in ports:
            try:
                listener = bind_all_addresses(port, reuse=True)
                start_listening(listener, self._poll)
            except OSError as error:
                self._log.write(f"port {port}: {error}")
                continue
            self._sockets[port] = listener
            self._ports[listener.fileno()] = port


class TlsForwarder:
    """Forwards connections between the tasks of this host and those of others.

    Args:
        config: The file with the JSON form of a `Forwarding`.
        namespace: The descriptor of the network namespace of the tasks.

    Raises:
        OSError: A file cannot be read, or the port is taken.
        ValueError: A file is damaged.
    """

    def __init__(self, config: Path, namespace: int, log: ForwarderLog) -> None:
        self._config = config
        self._namespace = namespace
        self._log = log
        self._poll = select.poll()
        self._admissions = Admissions(self._poll, log)
        self._listeners = _Listeners(self._poll, namespace, log)
        self.load()
        self._outer = bind_all_addresses(self._forwarding.own.port, reuse=True)
        start_listening(self._outer, self._poll)

    def load(self) -> None:
        """Read what to forward, and the certificate; connections that exist are left alone."""
        data = self._config.read_bytes()
        forwarding = from_stored(Forwarding, json.loads(data))
        self._server = make_context(forwarding.certificate, is_server=True)
        self._client = make_context(forwarding.certificate, is_server=False)
        self._forwarding = forwarding
        self._routes = {port: (host, forwarding.forwarders[host]) for port, host in forwarding.routes().items()}
        self._listeners.set_ports(self._routes.keys())
        self._loaded = hashlib.sha256(data).hexdigest()

    def _report(self) -> None:
        """Tell the agent what is loaded, now that the forwarder listens."""
        try:
            loaded_path(self._config).write_text(self._loaded)
        except OSError as error:
            self._log.write(f"the agent cannot be told that the forwarder listens: {error}")

    def run(self, wakeup: socket.socket) -> NoReturn:
        """Forward until the process ends.

        `wakeup` is readable when `load` is to be called.
        """
        self._poll.register(wakeup, select.POLLIN)
        self._report()
        while True:
            times = [seconds for seconds in (self._admissions.expire(), self._log.expire()) if seconds is not None]
            for fd, _ in self._poll.poll(1 + 1000 * min(times) if times else None):
                if fd == wakeup.fileno():
                    wakeup.recv(settings.IO_BLOCK_BYTES)
                    try:
                        self.load()
                    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no thread is left
                        self._log.write(f"what to forward cannot be loaded: {error}")
                    self._report()
                else:
                    self._handle(fd)

    def _handle(self, fd: int) -> None:
        """Handle the event of a descriptor, which may have been closed since."""
        if fd == self._outer.fileno():
            self._admissions.accept(self._outer, self._server)
        elif fd in self._admissions:
            admitted = self._admissions.advance(fd)
            if admitted is not None:
                _start_thread(partial(self._serve_host, *admitted), admitted[0])
        elif fd in self._listeners:
            task = self._listeners.accept(fd)
            if task is not None:
                _start_thread(partial(self._serve_task, *task), task[0])

    def _serve_task(self, plain: socket.socket, port: int) -> None:
        """Connect a task of this host, or a program, to a port of a task elsewhere."""
        if (route := self._routes.get(port)) is None:  # the task was removed since the connection was accepted
            reset(plain)
            return
        host, place = route
        with self._closing_all(plain, f"to port {port} of {host}, {place.address}") as connections:
            outer = socket.create_connection((place.address, place.port), settings.LINK_CONNECT_SECONDS)
            connections.append(outer)
            tls = self._client.wrap_socket(outer, suppress_ragged_eofs=False)
            connections[-1] = tls
            if peer_of(tls) != host:
                raise ConnectionRefusedError(f"it has the certificate of {peer_of(tls)!r}")
            request(tls, port)
            _pump_connection(plain, tls)

    def _serve_host(self, tls: ssl.SSLSocket, address: str, port: int) -> None:
        """Connect another host to the port of a task of this host."""
        with self._closing_all(tls, f"from {address} to port {port}") as connections:
            peer = peer_of(tls)
            if peer == self._forwarding.host or peer not in self._forwarding.forwarders:
                raise ConnectionRefusedError(f"refused: its certificate is of {peer!r}, which is not in the cluster")
            if port not in self._forwarding.own.ports:
                raise ConnectionRefusedError(f"refused: {peer} asks for a port that is no task's")
            enter_network(self._namespace)
            plain = socket.create_connection(("127.0.0.1", port), settings.LINK_CONNECT_SECONDS)
            connections.append(plain)
            _pump_connection(plain, tls)

    @contextlib.contextmanager
    def _closing_all(self, connection: socket.socket, name: str) -> Iterator[list[socket.socket]]:
        """Close all connections when the context is left; reset them if one was lost, so that the peers notice it.

        The other connections are added to the list that this yields. `name` is what the log calls them.
        """
        connections = [connection]
        close: Callable[[socket.socket], None] = socket.socket.close
        try:
            yield connections
        except (OSError, ValueError) as error:  # ValueError: a certificate that cannot be decoded
            close = reset
            if not isinstance(error, ConnectionResetError):
                self._log.write_connection(f"connection {name}: {explain(error)}")
        finally:
            for each in connections:
                close(each)


def _pump_connection(plain: socket.socket, tls: ssl.SSLSocket) -> None:
    """Forward one connection until both sides have ended it.

    Raises ConnectionResetError: one of them has cut it.
    """
    for connection in (plain, tls):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    detect_loss(tls)
    try:
        pump(plain, tls)
    except OSError as error:
        raise ConnectionResetError("the connection was cut") from error


def _start_thread(function: Callable[[], None], connection: socket.socket) -> None:
    try:
        threading.Thread(target=function, daemon=True).start()
    except RuntimeError:  # no thread or memory is left
        reset(connection)


def start_listening(listener: socket.socket, poll: select.poll) -> None:
    """Have a bound socket listen, and watch it.

    Raises OSError: another process listens on the port.
    """
    listener.setblocking(False)
    listener.listen(settings.PORT_BACKLOG)
    poll.register(listener, select.POLLIN)


def loaded_path(config: Path) -> Path:
    """Return the file in which a forwarder tells which content of its file it has loaded, as a hash of it."""
    return config.with_suffix(".loaded")


def forward(config: Path, log_path: Path, network: PrivateNetwork, namespaces: tuple[int, int]) -> NoReturn:
    """Forward until the process ends, and read the file again at each SIGHUP.

    `namespaces` are the descriptors of the network's namespaces; see `PrivateNetwork.open`. Raises OSError: as for
    `TlsForwarder`; or the namespaces cannot be entered. Raises ValueError: as for `TlsForwarder`.
    """
    raise_descriptor_limit()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    network.enter_user_namespace(namespaces[0])
    log = ForwarderLog(log_path)
    try:
        forwarder = TlsForwarder(config, namespaces[1], log)
    except (OSError, ValueError) as error:
        log.write(f"the forwarder cannot start: {error}")
        raise
    forwarder.run(reader)
