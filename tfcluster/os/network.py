"""Free ports, lost connections, and the kernel's TCP sockets: who listens, and a process's connections.

A process's sockets are found by its descriptors. The tables in /proc are those of any process's network.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from tfcluster import settings
from tfcluster.os import procfs

Address = IPv4Address | IPv6Address


def parse_address(text: str) -> Address:
    """Parse an IP address as the functions of `socket` return it: with a scope, or an IPv4 address in an IPv6 one."""
    address = ip_address(text.partition("%")[0])  # "%eth0" follows a link-local address
    return (address.version == 6 and address.ipv4_mapped) or address


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
        with suppress(OSError):  # it is taken
            return bind_all_addresses(port)
    raise OSError(errno.EADDRINUSE, f"no free port between {ports[0]} and {ports[-1]}")


def free_port(ports: Sequence[int] = ()) -> int:
    """Return a free port, if possible one of `ports`, for the server that a strategy starts in its chief."""
    for choice in random.sample(ports, len(ports)):
        with suppress(OSError), bind_all_addresses(choice):  # else it is taken
            return choice
    with bind_all_addresses(0) as probe:
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


#: The folder of the tables of this process's network.
OWN_TABLES = Path("/proc/self/net")
_NAMES = ("tcp", "tcp6")
_ESTABLISHED, _LISTEN = "01", "0A"


@dataclass(frozen=True)
class TcpSocket:
    """A line of a table."""

    port: int
    remote_port: int  # 0 if it has no peer
    inode: int  # by which its process is found; 0 if no process has it any more
    is_listening: bool
    is_connected: bool


def read_sockets(folder: Path) -> Iterator[TcpSocket]:
    """Yield all sockets of a network, for a process's /proc/PID/net; raises OSError if the process does not exist."""
    for name in _NAMES:
        with suppress(FileNotFoundError), open(folder / name) as table:  # a kernel without IPv6 has only the first
            next(table, None)
            for line in table:
                _, local, remote, state, *rest = line.split(maxsplit=10)
                yield TcpSocket(_port(local), _port(remote), int(rest[5]), state == _LISTEN, state == _ESTABLISHED)


def has_listener(port: int, folder: Path) -> bool:
    """Return whether a socket of a network listens on a port; False if the network does not exist any more."""
    with suppress(OSError):
        return any(each.port == port and each.is_listening for each in read_sockets(folder))
    return False


def find_listener(port: int, folder: Path) -> int | None:
    """Return the pid of a process that listens on a port; 0 if this user cannot see it, None if there is none."""
    inodes = {each.inode for each in read_sockets(folder) if each.port == port and each.is_listening}
    if not inodes:
        return None
    return next((pid for pid in procfs.pids() if not inodes.isdisjoint(socket_inodes(pid))), 0)


def connected_ports(pid: int) -> set[int]:
    """Return the ports that a process, in any network, is connected to; OSError if it is gone or another account's."""
    own = set(socket_inodes(pid))
    sockets = read_sockets(Path(f"/proc/{pid}/net"))
    return {each.remote_port for each in sockets if each.is_connected and each.inode in own}


def socket_inodes(pid: int) -> Iterator[int]:
    """Yield the inode numbers of a process's sockets; none if this user may not see them."""
    return (int(file[8:-1]) for file in procfs.open_files(pid) if file.startswith("socket:["))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
