"""The kernel's tables of TCP sockets: who listens on a port of a network, and what a process is connected to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfcluster.processes.socket_traffic import socket_inodes

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
    """Yield all sockets of a network; `folder` is /proc/PID/net for the network of a process.

    Raises OSError if the process does not exist.
    """
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
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return next((pid for pid in pids if not inodes.isdisjoint(socket_inodes(pid))), 0)


def connected_ports(pid: int) -> set[int]:
    """Return the ports that a process is connected to, in whatever network it is.

    Raises OSError if the process does not exist, or belongs to another account.
    """
    own = set(socket_inodes(pid))
    sockets = read_sockets(Path(f"/proc/{pid}/net"))
    return {each.remote_port for each in sockets if each.is_connected and each.inode in own}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
