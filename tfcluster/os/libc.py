"""Functions of the C library that Python's standard library lacks.

A Python that was built with the headers of an old kernel and C library, such as conda's and uv's, lacks those for
pidfds and anonymous files, whatever kernel it runs on.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

# The numbers of these system calls are the same on every architecture.
_SYS_PIDFD_SEND_SIGNAL, _SYS_PIDFD_OPEN, _SYS_PIDFD_GETFD = 424, 434, 438
_MFD_CLOEXEC = 1

#: For os.waitid(): wait for the process of a pidfd.
P_PIDFD = 3


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: object) -> int:
    """Call a function that reports an error by a negative result and errno; return its result, or raise an OSError."""
    result = int(getattr(_library(), function)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def pidfd_open(pid: int) -> int:
    """Open a pidfd of a process, closed on exec."""
    return call("syscall", _SYS_PIDFD_OPEN, pid, 0)


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Send a signal to the process of a pidfd."""
    call("syscall", _SYS_PIDFD_SEND_SIGNAL, pidfd, number, None, 0)


def pidfd_getfd(pidfd: int, fd: int) -> int:
    """Duplicate a descriptor of the process of a pidfd; the duplicate is closed on exec."""
    return call("syscall", _SYS_PIDFD_GETFD, pidfd, fd, 0)


def memfd_create(name: str) -> int:
    """Create a file in memory, closed on exec, and return its descriptor."""
    return call("memfd_create", name.encode(), _MFD_CLOEXEC)
