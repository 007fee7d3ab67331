"""TCP port allocation for tasks: find free ports, reserve them, and find the process that listens on a port."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.os import procfs
from tfcluster.os.network import OWN_TABLES, bind_all_addresses, find_listener, has_listener, read_sockets
from tfcluster.os.unix_socket import NameLock

_DESCRIPTORS = "A task needs two file descriptors of the agent: raise the hard limit (`ulimit -Hn` shows it)."
_UNSEEN = "a process that this user cannot see"
#: The folder of the socket tables of a private network that does not exist yet.
NO_SOCKET_TABLES = Path(os.devnull)


class PortAllocator:
    """Reserves the TCP ports of the agent's tasks.

    A reserved port is bound but does not listen: connections to it are refused, and the kernel does not assign it to
    another process, even while a task has no process because it restarts. SO_REUSEADDR, set after the bind, lets the
    task's own server (gRPC sets it too) bind the same port. The option would also admit another agent that finds
    lingering connections on the port. For this reason the agents of a user exclude each other with a `NameLock` per
    port, which belongs to a network namespace as ports do.

    A server that an agent adopts already listens. Nothing can bind the port of a listening socket except with
    SO_REUSEPORT on both sockets, and that would open the port to every gRPC server of this user, as these set the
    option too. For this reason an adopted server's port is only locked, and is bound as soon as the server has
    exited.

    No other cluster is in a cluster's private network: its ports need no lock, and the agent, which is outside,
    cannot bind them. A port is free there unless a socket listens on it.
    """

    def __init__(self) -> None:
        self._private: Path | None = None  # the tables of the sockets in the private network
        self._private_ports: set[int] = set()
        self._sockets: dict[int, socket.socket] = {}
        self._locks: dict[int, NameLock] = {}
        self._listeners = 0

    def move_to(self, private: Path | None) -> None:
        """Release all ports, and reserve those of another network from now on.

        `private` has the tables of the sockets in a private network; None stands for the network of this process.
        """
        ports = self._private_ports if private is not None and self._private is not None else set()
        self.release_except(ports)
        self._private, self._private_ports = private, ports

    def lock(self, port: int) -> None:
        """Keep other agents from a port on which one of this agent's servers listens; needless in a private network.

        Raises OSError if no file descriptors are left.
        """
        if self._private is not None or port in self._locks:
            return
        if (lock := NameLock.acquire(f"tfcluster-port-{os.getuid()}-{port}")) is not None:
            self._locks[port] = lock

    def reserve(self, port: int) -> bool:
        """Reserve and bind a port if it is free; return whether this agent has reserved it now.

        Connections of an earlier server may linger on the port (TIME_WAIT, for one minute) without making it taken: a
        cluster that was stopped can start again immediately on the same ports.

        Raises OSError if the port is not taken but cannot be used, for example because it needs privileges.
        """
        if port in self._private_ports:  # the kernel takes milliseconds for a table: it walks those of all networks
            return True
        if self._private is not None:
            if has_listener(port, self._private):
                return False
            self._private_ports.add(port)
            return True
        if port in self._sockets:
            return True
        was_locked = port in self._locks
        self.lock(port)
        if port not in self._locks:
            return False
        bound_socket = None
        try:
            bound_socket = _bind(port, reuse=False)
            if bound_socket is None and _is_in_use(port):
                bound_socket = _bind(port, reuse=True)
        finally:
            if bound_socket is None and not was_locked:
                self._locks.pop(port).release()
        if bound_socket is None:
            return False
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets[port] = bound_socket
        return True

    def allocate(self, count: int, without: Collection[int] = ()) -> Iterator[int]:
        """Allocate `count` free ports in ascending order, except those in `without`, and reserve each of them.

        Raises ClusterError: so many are not free, or cannot be reserved. The caller releases those that it has got.
        """
        skipped = {*self.reserved, *without}
        candidates = (port for port in range(settings.FIRST_PORT, settings.LAST_PORT + 1) if port not in skipped)
        for _ in range(count):
            try:
                port = next((port for port in candidates if self.reserve(port)), None)
            except OSError as error:
                hint = _DESCRIPTORS if error.errno == errno.EMFILE else ""
                raise ClusterError(f"no further port can be reserved: {error.strerror}", hint=hint) from error
            if port is None:
                raise ClusterError(f"no free port between {settings.FIRST_PORT} and {settings.LAST_PORT}")
            yield port

    @contextmanager
    def listen_temporarily(self, ports: Collection[int]) -> Iterator[list[socket.socket]]:
        """Listen on reserved ports temporarily, for a connectivity check.

        Connections that were not accepted are reset at the end. Yields the sockets that listen now, sorted by their
        ports, without those that cannot listen.
        """
        self._listeners += 1
        try:
            bound = [self._sockets[port] for port in sorted(ports) if port in self._sockets]
            yield [each for each in bound if _listen(each)]
        finally:
            self._listeners -= 1
            if not self._listeners:
                self.stop_listening()

    def stop_listening(self) -> None:
        """Stop listening on all reserved ports, so that servers can listen there; the ports stay reserved."""
        for bound_socket in self._sockets.values():
            with suppress(OSError):  # ENOTCONN: the socket does not listen
                bound_socket.shutdown(socket.SHUT_RDWR)  # undoes listen() but not bind()

    def release_except(self, ports: Collection[int]) -> None:
        """Release all ports except some."""
        for port in self._sockets.keys() - set(ports):
            self._sockets.pop(port).close()
        for port in self._locks.keys() - set(ports):
            self._locks.pop(port).release()
        self._private_ports.intersection_update(ports)

    @property
    def reserved(self) -> frozenset[int]:
        """Return the ports that are reserved and, except in a private network, bound."""
        return frozenset({*self._sockets, *self._private_ports})

    def owner(self, port: int) -> str:
        """Describe the process that listens on a port, as far as this user may see it, for a message."""
        pid = find_listener(port, self._private or OWN_TABLES)
        if pid is None:
            return "a process that does not listen on it, such as another cluster's agent while its server restarts"
        arguments = procfs.arguments(pid)
        return f"process {pid} ({' '.join(arguments).strip()[:80]})" if arguments else _UNSEEN


def _is_in_use(port: int) -> bool:
    """Return whether a socket of this machine listens on a port, or has a connection on it, and is not only bound."""
    return any(each.port == port for each in read_sockets(OWN_TABLES))


def _listen(bound_socket: socket.socket) -> bool:
    try:
        bound_socket.listen(settings.PORT_BACKLOG)
    except OSError:  # the task's server already listens on the port
        return False
    return True


def _bind(port: int, *, reuse: bool) -> socket.socket | None:
    """Bind a socket to a port on all addresses, or return None if the port is taken."""
    try:
        return bind_all_addresses(port, reuse=reuse)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise
