"""Closing a server's port to everything but its cluster.

A TensorFlow server listens on every interface, whatever its address says, and runs any graph for anybody who
connects. Between TF_NewServer, which binds the port, and TF_ServerStart nothing is served: in that gap the listening
socket is closed to others, and whoever has connected already is cut off (gRPC accepts connections from the start).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator

from tfcluster.runtime import source_filter
from tfcluster.runtime.addresses import Address, interface_to

_LOOPBACK = "lo"


class NotClosedError(Exception):
    """Why the port could not be closed."""


def close_port(port: int, cluster: Collection[Address]) -> None:
    """Have this process's listening sockets on `port` accept from this machine and the rest of its cluster only.

    Args:
        port: The port.
        cluster: The addresses of all the cluster's hosts, this one's among them.

    Raises:
        NotClosedError: As for the one of the two below that is called.
    """
    if all(address.is_loopback for address in cluster):
        close_to_other_machines(port)
    else:
        close_to_strangers(port, cluster)


def close_to_other_machines(port: int) -> None:
    """Have this process's listening sockets on `port` accept from this machine only, through loopback.

    Raises:
        NotClosedError: No such socket was found, or the kernel refused (it needs Linux 5.7, or root).
    """
    with _listeners(port) as listeners:
        _bind(listeners, f"port {port}", _LOOPBACK)
    _cut_off(port)


def close_to_strangers(port: int, cluster: Collection[Address]) -> None:
    """Have this process's listening sockets on `port` accept from a cluster's addresses only, and from this machine.

    By a filter on the sockets; where this process may not attach one, by binding them to the interface that leads to
    the cluster's hosts alone, if there is one. They do not accept from loopback then, but from this machine's own
    address in the cluster all the same: the kernel counts such connections to the interface that has the address.

    Raises:
        NotClosedError: No such socket was found, the kernel refused, or no interface leads to the cluster alone.
    """
    with _listeners(port) as listeners:
        _keep_strangers_out(listeners, f"port {port}", cluster)
    _cut_off(port)


def try_to_close(cluster: Collection[Address]) -> None:
    """Try on a socket that nobody uses whether the port of a server of a cluster could be closed on this machine.

    Raises:
        NotClosedError: It could not.
    """
    if not all(address.is_loopback for address in cluster):
        with socket.socket() as unused:
            _keep_strangers_out([unused], "the servers' ports", cluster)


def _keep_strangers_out(listeners: Collection[socket.socket], ports: str, cluster: Collection[Address]) -> None:
    try:
        for listener in listeners:
            source_filter.attach(listener, cluster)
    except PermissionError as error:
        interface = interface_to(cluster)
        if interface is None:
            raise NotClosedError(
                f"the kernel lets only a process with CAP_NET_ADMIN choose who connects to {ports}, "
                "and no network interface leads to the cluster's hosts and nobody else"
            ) from error
        _bind(listeners, ports, interface)
    except OSError as error:
        raise NotClosedError(f"the kernel refused a filter on {ports}: {error.strerror}") from error


def _bind(listeners: Collection[socket.socket], ports: str, interface: str) -> None:
    try:
        for listener in listeners:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except OSError as error:
        where = "loopback" if interface == _LOOPBACK else interface
        raise NotClosedError(f"the kernel refused to bind {ports} to {where}: {error.strerror}") from error


@contextlib.contextmanager
def _listeners(port: int) -> Iterator[list[socket.socket]]:
    """This process's listening sockets on a port: one where IPv6 takes IPv4 along, else two.

    Raises:
        NotClosedError: There is none.
    """
    with _sockets(port) as found:
        listeners = [each for each in found if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
        if not listeners:
            raise NotClosedError(f"found no listening socket on port {port} to close")
        yield listeners


def _cut_off(port: int) -> None:
    """End every connection that was accepted on a port before it was closed, or waits to be."""
    with _listeners(port) as listeners:
        for listener in listeners:
            _empty_queue(listener)
    with _sockets(port) as found:
        for each in found:
            with contextlib.suppress(OSError):  # TensorFlow's threads may have let go of it, or the other end
                if not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    each.shutdown(socket.SHUT_RDWR)


def _empty_queue(listener: socket.socket) -> None:
    """Accept all connections that wait for it, and close them."""
    listener.setblocking(False)  # as gRPC has it anyway
    with contextlib.suppress(BlockingIOError):
        while True:
            with contextlib.suppress(ConnectionError):  # one that was aborted meanwhile
                listener.accept()[0].close()


@contextlib.contextmanager
def _sockets(port: int) -> Iterator[list[socket.socket]]:
    """This process's TCP sockets whose own port it is. The descriptors are TensorFlow's, and stay open."""
    candidates: list[socket.socket] = []
    try:
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # the descriptor that listed the folder is gone
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    candidates.append(socket.socket(fileno=fd))
        yield [each for each in candidates if _is_on(each, port)]
    finally:
        for each in candidates:
            each.detach()


def _is_on(candidate: socket.socket, port: int) -> bool:
    return (
        candidate.family in (socket.AF_INET, socket.AF_INET6)
        and candidate.type == socket.SOCK_STREAM
        and bool(candidate.getsockname()[1] == port)
    )
