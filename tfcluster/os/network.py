"""Free ports, and connections that are lost."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from tfcluster import settings

Address = IPv4Address | IPv6Address


def bind_all_addresses(port: int, *, reuse: bool = False) -> socket.socket:
    """Bind a socket to a port (0: any) on all addresses, as TensorFlow's servers do; `reuse` sets SO_REUSEADDR."""
    try:
        bound_socket = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        bound_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:  # a kernel without IPv6
        bound_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        bound_socket.bind(("", port))
    except BaseException:
        bound_socket.close()
        raise
    return bound_socket


def bind_free_port(ports: Sequence[int] = ()) -> socket.socket:
    """Bind a socket to a free port of `ports` on all addresses.

    The default is the range for a cluster's servers: a firewall between hosts may let only those ports pass.
    """
    ports = ports or range(settings.FIRST_PORT, settings.LAST_PORT + 1)
    first = random.randrange(len(ports))
    for port in (*ports[first:], *ports[:first]):
        with contextlib.suppress(OSError):  # it is taken
            return bind_all_addresses(port)
    raise OSError(errno.EADDRINUSE, f"no free port between {ports[0]} and {ports[-1]}")


def free_port(ports: Sequence[int] = ()) -> int:
    """Return a free port, if possible one of `ports`, for the server that a strategy starts in its chief."""
    for choice in random.sample(ports, len(ports)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", choice))
            return choice
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def detect_loss(connection: socket.socket) -> None:
    """Have the kernel end a connection when the other host is unreachable, even if there is nothing to send."""
    seconds = settings.LINK_SECONDS
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, seconds // 3),
        (socket.TCP_KEEPINTVL, seconds // 3),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, 1000 * seconds),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
