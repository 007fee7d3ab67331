"""Free ports, lost connections, and the network interfaces of this machine."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import struct
from collections.abc import Collection, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

from tfcluster import settings

Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network


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


def interface_for(cluster: Collection[Address], routes: Path = Path("/proc/net")) -> str | None:
    """Return the interface that leads to exactly a cluster's addresses (with this host's), by the routing tables."""
    networks_of: dict[str, set[_Network]] = {}
    for interface, network in (*_ipv4_routes(routes / "route"), *_ipv6_routes(routes / "ipv6_route")):
        networks_of.setdefault(interface, set()).add(network)
    for interface, networks in networks_of.items():
        # Most networks have more addresses than the cluster. Skip them, so that their addresses are not enumerated.
        if all(network.num_addresses <= len(cluster) + 2 for network in networks):
            reached = {address for network in networks for address in network.hosts()}
            if reached == set(cluster):
                return interface
    return None


def _ipv4_routes(table: Path) -> Iterable[tuple[str, _Network]]:
    for line in table.read_text().splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask, *_ = line.split()
        # The addresses in the table are in the machine's byte order.
        yield interface, IPv4Network((_ipv4(destination), str(_ipv4(mask))))


def _ipv4(word: str) -> IPv4Address:
    return IPv4Address(struct.pack("=I", int(word, 16)))


def _ipv6_routes(table: Path) -> Iterable[tuple[str, _Network]]:
    """Yield the interface and the network of each IPv6 route that is not on every interface (link-local, multicast)."""
    if not table.exists():
        return
    for line in table.read_text().splitlines():
        destination, bits, *_, interface = line.split()
        network = IPv6Network((bytes.fromhex(destination), int(bits, 16)))
        if not (network.is_link_local or network.is_multicast):
            yield interface, network
