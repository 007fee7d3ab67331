"""Open files that the user names, without waiting forever for a pipe or reading a device without end."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import BinaryIO

from tfcluster import settings

_NULL_DEVICE = os.makedev(1, 3)


def open_input(path: Path | str) -> BinaryIO:
    """Open a file or pipe for reading; raise an OSError for a device and for a pipe that no process writes to.

    A path with a NUL character raises a ValueError.
    """
    if stat.S_ISFIFO(os.stat(path).st_mode):
        return open(path, "rb", opener=lambda path, flags: _open_pipe(path))
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    try:
        check_has_end(file.fileno())
    except OSError:
        file.close()
        raise
    return file


def is_descriptor(path: str) -> bool:
    """Return whether a path names a descriptor of the process that opens it, as /dev/stdin and /dev/fd/63 do."""
    return path == "/dev/stdin" or path.startswith("/dev/fd/")


def check_has_end(fd: int) -> None:
    """Raise an OSError if an open file is a device such as /dev/zero, which can be read without end."""
    status = os.fstat(fd)
    is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
    if is_device and status.st_rdev != _NULL_DEVICE and not os.isatty(fd):
        raise OSError(errno.EINVAL, "this is a device, not a file")


def read_input(path: Path, limit: int) -> bytes:
    """Read a file or pipe up to its end, or up to `limit` + 1 bytes; see `open_input` for errors."""
    with open_input(path) as file:
        return file.read(limit + 1)


def _open_pipe(path: Path | str) -> int:
    """Open a named pipe, which blocks until another process opens it for writing."""
    results: list[int | OSError] = []

    def open_for_reading() -> None:
        try:
            results.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            results.append(error)

    opening = threading.Thread(target=open_for_reading, daemon=True)
    opening.start()
    opening.join(settings.PIPE_OPEN_SECONDS)
    is_late = opening.is_alive()
    if is_late:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))  # ends the thread's wait
        opening.join()
    (result,) = results
    if isinstance(result, OSError):
        raise result
    if is_late:
        os.close(result)
        raise TimeoutError(errno.ETIMEDOUT, "no process writes to this pipe")
    return result
