"""Free ranges of files on the disk: such holes are read as zeros and change no offset."""

from __future__ import annotations

import ctypes
import errno
import os

from tfcluster.os import libc

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
#: The errors of file systems that cannot free a range of a file.
UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)


def punch(fd: int, start: int, end: int) -> None:
    """Free a range of a file, zeroing partial blocks; raises OSError, in `UNSUPPORTED` if the file system never can."""
    libc.call("fallocate", fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(end - start))


def first_data(fd: int, position: int) -> int:
    """Return the first position at or after `position` that is not in a hole of the file."""
    return _seek(fd, position, os.SEEK_DATA, position)


def first_hole(fd: int, position: int) -> int:
    """Return the first position at or after `position` that is in a hole of the file, or at its end."""
    return _seek(fd, position, os.SEEK_HOLE, None)


def _seek(fd: int, position: int, whence: int, without_holes: int | None) -> int:
    size = os.fstat(fd).st_size  # before the search: what is appended later is not in the hole
    try:
        return os.lseek(fd, position, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole follows, or the file ends here
            return size
        if error.errno == errno.EINVAL:  # the file system does not support holes
            return size if without_holes is None else without_holes
        raise
