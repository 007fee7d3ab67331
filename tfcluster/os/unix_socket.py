"""Unix sockets: at paths of any length, and abstract ones as locks, which no file stands for."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfcluster.os import procfs

# sun_path holds 108 bytes including the closing NUL (unix(7)).
_PATH_LIMIT = 107
_ATTEMPTS = 10  # to take a name that is freed just now
# From linux/netlink.h, linux/sock_diag.h and linux/unix_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_ANY_STATE = _NO_COOKIE = 2**32 - 1
_SHOW_UID, _UNIX_DIAG_UID = 0x40, 7  # since Linux 5.3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_MESSAGE_BYTES = 16  # of struct unix_diag_msg, before the attributes


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address for bind() and connect() that leads to the path of a socket, which may be too long for them."""
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class NameLock:
    """A name that one process of this user holds in its network namespace: an abstract Unix socket (unix(7)).

    The kernel frees the name when no process has the socket any more. Unlike a lock file, it cannot be deleted.
    """

    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound

    @classmethod
    def acquire(cls, name: str) -> NameLock | None:
        """Take a name; return None if a process of this user holds it already, even this one.

        A name that another account holds counts as free, because no account may keep this user from anything.
        Raises OSError: no descriptor is left.
        """
        lock = cls(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        for _ in range(_ATTEMPTS):
            if lock._bind(name):
                return lock
            if (inode := _inode_of(name)) is None:  # it was freed just now
                continue
            if _owner_of(inode) not in (os.getuid(), None):
                return lock  # without the name
            break
        lock.release()
        return None

    def _bind(self, name: str) -> bool:
        try:
            self._socket.bind(f"\0{name}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            self.release()
            raise
        return True

    @staticmethod
    def holder(name: str) -> int:
        """Return the pid of this user's process that holds a name; 0 if none can be seen."""
        held = f"socket:[{_inode_of(name)}]"
        return next((pid for pid in procfs.pids() if held in procfs.open_files(pid)), 0)

    def release(self) -> None:
        """Free the name, unless a fork of this process has the socket too."""
        self._socket.close()


def _inode_of(name: str) -> int | None:
    """Return the inode of the abstract datagram socket with a name in this network namespace; None if there is none.

    Sockets of other types can have the same name.
    """
    rows = (line.split() for line in Path("/proc/self/net/unix").read_text(errors="replace").splitlines())
    kind = f"{int(socket.SOCK_DGRAM):04x}"
    return next((int(row[6]) for row in rows if row[7:] == [f"@{name}"] and row[4] == kind), None)


def _owner_of(inode: int) -> int | None:
    """Return the uid of the account that has made a Unix socket, by sock_diag(7); None if the kernel does not tell."""
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, _ANY_STATE, inode, _SHOW_UID, _NO_COOKIE, _NO_COOKIE)
    header = struct.pack("=IHHII", _HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.send(header + request)
            reply = kernel.recv(1 << 12)
    except OSError:
        return None
    length, kind, *_ = _HEADER.unpack_from(reply)
    at = _HEADER.size + _MESSAGE_BYTES
    while kind == _SOCK_DIAG_BY_FAMILY and at + _ATTRIBUTE.size <= length:
        size, attribute = _ATTRIBUTE.unpack_from(reply, at)
        if attribute == _UNIX_DIAG_UID:
            return int.from_bytes(reply[at + _ATTRIBUTE.size : at + size], sys.byteorder)
        at += -(-max(size, _ATTRIBUTE.size) // 4) * 4  # each is aligned
    return None
