"""Closing a server's port to everything but this machine.

A TensorFlow server listens on every interface, whatever its address says, and runs any graph for anybody who
connects. Between TF_NewServer, which binds the port, and TF_ServerStart nothing is served; a socket bound to
the loopback device in that gap accepts from nowhere else.
"""

from __future__ import annotations

import os
import socket
import stat

_LOOPBACK = b"lo"


class NotClosedError(Exception):
    """Why the port could not be closed."""


def close_to_other_machines(port: int) -> None:
    """Bind this process's listening sockets on `port` to the loopback device.

    Raises:
        NotClosedError: No such socket was found, or the kernel refused (it needs Linux 5.7, or root).
    """
    found = 0
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            found += _close(fd, port)
        except OSError as error:
            raise NotClosedError(f"the kernel refused to bind port {port} to loopback: {error.strerror}") from error
    if not found:
        raise NotClosedError(f"found no listening socket on port {port} to close")


def _close(fd: int, port: int) -> bool:
    """Bind the socket behind a descriptor to loopback if it listens on `port`; whether it does.

    There is one such socket where IPv6 takes IPv4 along, else two.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
    except OSError:  # the descriptor that listed the folder is gone
        return False
    candidate = socket.socket(fileno=fd)
    try:
        if _listens(candidate, port):
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK)
            return True
        return False
    finally:
        candidate.detach()  # the descriptor is TensorFlow's


def _listens(candidate: socket.socket, port: int) -> bool:
    return (
        candidate.family in (socket.AF_INET, socket.AF_INET6)
        and candidate.type == socket.SOCK_STREAM
        and bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        and bool(candidate.getsockname()[1] == port)
    )
