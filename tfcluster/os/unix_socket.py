"""Unix sockets: at paths of any length, and abstract ones as locks, which no file stands for."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfcluster.os.process_handle import peer_credentials

# sun_path holds 108 bytes including the closing NUL (unix(7)).
_PATH_LIMIT = 107
_BACKLOG = 128  # of a lock: nobody accepts the connections of those who ask for its holder
_LOOKS, _LOOK_SECONDS = 5, 0.01  # until a name that was taken just now has a listener


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
        """Take a name; return None if a process of this user has it already, even this one.

        Other accounts must not be able to keep this user from anything, so a name that one of them has counts as free.
        Raises OSError: no descriptor is left.
        """
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bound.bind(f"\0{name}")
            bound.listen(_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and cls.holder(name) is None:
                return cls(bound)
            bound.close()
            if error.errno == errno.EADDRINUSE:
                return None
            raise
        return cls(bound)

    @staticmethod
    def holder(name: str) -> int | None:
        """Return the pid of this user's process that has a name, 0 if it is in another pid namespace; else None."""
        for _ in range(_LOOKS):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.setblocking(False)
                try:
                    connection.connect(f"\0{name}")
                except ConnectionRefusedError:  # nobody has it, or somebody who does not listen yet
                    time.sleep(_LOOK_SECONDS)
                except OSError:  # not a socket that `acquire` has made
                    return None
                else:
                    pid, uid = peer_credentials(connection)
                    return pid if uid == os.getuid() else None
        return None

    def release(self) -> None:
        """Free the name, unless a fork of this process has the socket too."""
        self._socket.close()
