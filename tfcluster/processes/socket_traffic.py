"""The bytes that processes have sent and received over TCP, from the kernel's counters of their sockets (sock_diag).

The kernel counts for each socket, not for each process: so the sockets of a process are found by its descriptors, and
the network's sockets are listed by one request that `ss --info` sends too. What a socket has moved is known as long as
it is open.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from tfcluster import settings

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


def read_traffic(pids: Iterable[int]) -> dict[int, Counters]:
    """Read the counters of the sockets of processes in this process's network.

    Raises:
        OSError: The kernel has no sock_diag for TCP.
    """
    counters = {inode: moved for family in (socket.AF_INET, socket.AF_INET6) for inode, moved in _list_sockets(family)}
    return {pid: {inode: counters[inode] for inode in socket_inodes(pid) if inode in counters} for pid in pids}


def socket_inodes(pid: int) -> Iterator[int]:
    """Yield the inode numbers of a process's sockets; none if this user may not see them."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                target = os.readlink(f"{folder}/{name}")
                if target.startswith("socket:["):
                    yield int(target[8:-1])


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
    """Return the bytes that a socket has received and sent; None if its attributes do not tell."""
    while len(attributes) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _INET_DIAG_INFO and size >= _ATTRIBUTE.size + _ACKED_OFFSET + _ACKED_RECEIVED.size:
            acked, received = _ACKED_RECEIVED.unpack_from(attributes, _ATTRIBUTE.size + _ACKED_OFFSET)
            return received, acked
        attributes = attributes[max(_ATTRIBUTE.size, (size + 3) & ~3) :]
    return None
