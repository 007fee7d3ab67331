"""The forwarder: connects the tasks of a private cluster's hosts through one TLS port for each host.

All tasks of the cluster have the address `localhost` and a port of their own. Those of this host listen in its network
namespace themselves; for those of other hosts the forwarder does, and goes through TLS to the forwarder of that host,
which connects to the task. It reads what it does from a file, and again at each SIGHUP, so that connections survive a
change and the agent.

The process is outside of the namespace. A socket belongs to the namespace of the thread that creates it, so some
threads enter it; they never leave it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import select
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

from tfcluster import settings
from tfcluster.core.forwarding import Forwarding
from tfcluster.os.daemonize import raise_descriptor_limit
from tfcluster.os.network import bind_all_addresses, detect_loss
from tfcluster.private_network import PrivateNetwork, enter_network
from tfcluster.processes.forwarder.admission import Admissions, accept, make_context, peer_of, request
from tfcluster.processes.forwarder.pump import pump, reset
from tfcluster.processes.forwarder.refusal_log import ForwarderLog, explain
from tfcluster.protocol.stored import from_stored

#: The format of the forwarder's files, see `protocol.stored`.
FORMAT = 1


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
        forwarding = from_stored(Forwarding, json.loads(data), FORMAT)
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

    Raises:
        ConnectionResetError: One of them has cut it.
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

    Raises:
        OSError: Another process listens on the port.
    """
    listener.setblocking(False)
    listener.listen(settings.PORT_BACKLOG)
    poll.register(listener, select.POLLIN)


def loaded_path(config: Path) -> Path:
    """Return the file in which a forwarder tells which content of its file it has loaded, as a hash of it."""
    return config.with_suffix(".loaded")


def forward(config: Path, log_path: Path, network: PrivateNetwork, namespaces: tuple[int, int]) -> NoReturn:
    """Forward until the process ends, and read the file again at each SIGHUP.

    `namespaces` are the descriptors of the network's namespaces; see `PrivateNetwork.open`.

    Raises:
        OSError: As for `TlsForwarder`; or the namespaces cannot be entered.
        ValueError: As for `TlsForwarder`.
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
