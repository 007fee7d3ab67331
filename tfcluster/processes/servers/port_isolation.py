"""Port isolation: accept connections to the ports of a process only from this machine, or from its cluster's hosts.

A TensorFlow server listens on all interfaces, whatever address it is given, and executes any graph for anyone who
connects. Each socket is therefore restricted before it listens; `listen_guard` sees to the order.

A port of a cluster on several hosts gets a socket filter (see `bpf`) that passes packets only from the addresses of the
hosts.
"""

from __future__ import annotations

import socket
from collections.abc import Collection

from tfcluster.os import bpf
from tfcluster.os.network import Address

#: The hint for hosts on which ports cannot be restricted.
OPEN_HINT = (
    "`network: private` in the spec requires no privileges, keeps everyone else out, including other accounts, and "
    "encrypts traffic between hosts; in return, only programs that `tfcluster run`, `launch` and `exec` start can "
    "reach the servers, and they can reach nothing else. `network: closed` works as root. `network: open` has no "
    "requirements, but every machine that can connect can run code as you: use it only if a firewall, or the network "
    "itself, keeps out non-members."
)
_LOOPBACK = b"lo"


class PortIsolationError(Exception):
    """A port cannot be restricted to this machine or the cluster; the message says why."""


def restrict(listener: socket.socket, cluster: Collection[Address]) -> None:
    """Restrict a TCP socket to connections from this machine and the rest of its cluster. This is idempotent.

    listen() has not been called on the socket yet. `cluster` includes the addresses of this host. A cluster on this
    machine alone is restricted to connections over loopback.

    Raises:
        PortIsolationError: The kernel refuses. For loopback it must be Linux 5.7 or newer, unless this process runs as
            root.
    """
    if all(address.is_loopback for address in cluster):
        _bind_to_loopback(listener)
    else:
        restrict_to_peers(listener, cluster)


def restrict_to_peers(listener: socket.socket, cluster: Collection[Address]) -> None:
    """Restrict a socket to connections from a cluster's addresses and from this machine.

    `cluster` includes the addresses of this host.

    Raises:
        PortIsolationError: The kernel refuses.
    """
    if bpf.has_locked_filter(listener):
        return
    try:
        bpf.attach_filter(listener, cluster)
    except PermissionError as error:
        raise PortIsolationError(
            f"the kernel lets only a process with CAP_NET_ADMIN choose who connects to {_named(listener)}"
        ) from error
    except OSError as error:
        raise PortIsolationError(f"the kernel refused a filter on {_named(listener)}: {error.strerror}") from error


def _bind_to_loopback(listener: socket.socket) -> None:
    # An unprivileged process can bind a socket to a device only once, so skip this if listen() is called again.
    if listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == _LOOPBACK:
        return
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK)
    except OSError as error:
        raise PortIsolationError(
            f"the kernel refused to bind {_named(listener)} to loopback: {error.strerror}"
        ) from error


def _named(listener: socket.socket) -> str:
    """Return a description of a socket's port for messages.

    A socket that is not bound to a port yet is the one of a check, or gets its port from listen().
    """
    port = listener.getsockname()[1]
    return f"port {port}" if port else "the servers' ports"
