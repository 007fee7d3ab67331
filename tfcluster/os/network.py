"""Free ports, lost connections, and the kernel's TCP sockets: who listens, a process's connections, and their traffic.

A process's sockets are found by its descriptors. The tables in /proc are those of any process's network. Traffic is
counted by sock_diag, in this process's network only, as long as the socket is open: one request, which `ss --info`
sends too, lists all sockets.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
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
# Requests and responses of sock_diag(7).
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLMSG_DONE, _NLMSG_ERROR = 20, 3, 2
_NLM_F_REQUEST_DUMP = 0x301
_INET_DIAG_INFO = 2
# Not the listening ones, nor those that no process has any more (the bits of TCP_TIME_WAIT, TCP_LISTEN, NEW_SYN_RECV).
_STATES = 0xFFF & ~(1 << 6 | 1 << 10 | 1 << 12)
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_INODE_OFFSET, _ATTRIBUTES_OFFSET = 68, 72  # in struct inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")
_ACKED_RECEIVED = struct.Struct("=QQ")
_ACKED_OFFSET = 120  # of tcpi_bytes_acked in struct tcp_info, and tcpi_bytes_received after it: since Linux 4.1

#: The bytes received and sent by each socket, by its inode number.
Counters = dict[int, tuple[int, int]]


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


def read_traffic(pids: Iterable[int]) -> dict[int, Counters]:
    """Read the counters of processes' sockets in this process's network. Raises OSError without sock_diag for TCP."""
    counters = {inode: moved for family in (socket.AF_INET, socket.AF_INET6) for inode, moved in _list_sockets(family)}
    return {pid: {inode: counters[inode] for inode in socket_inodes(pid) if inode in counters} for pid in pids}


def _list_sockets(family: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the inode number of each connection of this network, and the bytes that it has received and sent."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _STATES)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(settings.USAGE_WAIT_SECONDS)
        header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
        kernel.send(header + body)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                size, kind, *_ = _HEADER.unpack_from(data)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    number = -struct.unpack_from("=i", data, _HEADER.size)[0]
                    raise OSError(number, os.strerror(number))
                message, data = data[_HEADER.size : size], data[(size + 3) & ~3 :]
                (inode,) = struct.unpack_from("=I", message, _INODE_OFFSET)
                if (moved := _moved_bytes(message[_ATTRIBUTES_OFFSET:])) is not None:
                    yield inode, moved


def _moved_bytes(attributes: bytes) -> tuple[int, int] | None:
    """Return the bytes that a socket has received and sent; None if its attributes do not say."""
    while len(attributes) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _INET_DIAG_INFO and size >= _ATTRIBUTE.size + _ACKED_OFFSET + _ACKED_RECEIVED.size:
            acked, received = _ACKED_RECEIVED.unpack_from(attributes, _ATTRIBUTE.size + _ACKED_OFFSET)
            return received, acked
        attributes = attributes[max(_ATTRIBUTE.size, (size + 3) & ~3) :]
    return None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
