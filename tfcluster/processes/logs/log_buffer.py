"""What a task's process prints into: a file that nobody has to read, freed from its beginning as it is kept.

The process appends to it whoever else lives or dies, so it never waits and never loses a line. What has been copied
to the kept log is punched out of the file: the space is freed, the offsets stay. They are the lines' positions, so
a file made anew begins with a hole as long as all that was printed before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tfcluster.processes.logs.rotating_log import LONGEST_LINE, RotatingLog, end_of

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
#: So much stays though it is kept already: readers find the newest lines here, and the end of them in plain text.
_STAYS = 1 << 16
_FREED_AT_ONCE = 1 << 18


def prepare(path: Path, log: Path) -> None:
    """Make the file for a task's process, unless an earlier one has left it.

    Args:
        path: The file.
        log: The newest file of the task's kept log; its positions go on.

    Raises:
        OSError: It cannot be made.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, end_of(log))
        finally:
            os.close(fd)


def read(path: Path, position: int, size: int) -> tuple[bytes, float] | None:
    """What was printed at a position, and when the latest came; None where it was freed, or there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        data = os.pread(fd, size, position)
        # Asked behind the reading: what is no hole now was none before, and holes grow from the beginning.
        intact = _first_data(fd, position) == position or not data
        return (data, os.fstat(fd).st_mtime) if intact else None
    finally:
        os.close(fd)


def size_of(path: Path) -> int | None:
    """The position behind all that was printed; None where there is no such file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


class LogBuffer:
    """Brings what a task prints from its spool into its log.

    Args:
        path: The spool.
        log: The log; this is its only writer.
    """

    def __init__(self, path: Path, log: RotatingLog) -> None:
        self._path = path
        self._log = log
        self._position: int | None = None  # up to which it is kept
        self._freed = 0

    def drain(self, *, ended: bool = False) -> bool:
        """Keep the next block of whole lines; whether there may be more.

        What is more than the log has room for is left out, so that a task that prints faster than that is kept up
        with.

        Args:
            ended: Nothing more will be printed, so that a last line without its end is whole too.

        Raises:
            OSError: It could not be read or written; the next call tries again.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self._drain(fd, ended)
        except OSError:
            self._position = None  # a part may have been written
            raise
        finally:
            os.close(fd)

    def _drain(self, fd: int, ended: bool) -> bool:
        if self._position is None:
            self._position = self._log.recover()
        position, end = self._position, os.fstat(fd).st_size
        if end < position:  # somebody has emptied it, as `echo > /proc/PID/fd/2` does: it goes on behind its place
            said = os.pread(fd, LONGEST_LINE, 0)
            os.ftruncate(fd, position)
            end = position + os.pwrite(fd, said, position)
        if position == end:
            return False
        position = _first_data(fd, position)
        if end - position > self._log.room:
            position = _behind_line(fd, end - self._log.room)
        data = os.pread(fd, LONGEST_LINE, position)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and (ended or len(data) == LONGEST_LINE):
            whole = data
        self._log.append(whole, position, time.time())
        self._position = position + len(whole)
        self._free(fd, self._position - _STAYS)
        return bool(whole)

    def _free(self, fd: int, end: int) -> None:
        end -= end % os.fstat(fd).st_blksize  # a part of a block would not be freed, but read as zeros
        if end - self._freed < _FREED_AT_ONCE:
            return
        try:
            _punch(fd, self._freed, end)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # Such a file system frees only whole files. What is printed between the two calls is lost.
            if self._position != os.fstat(fd).st_size:
                return
            os.ftruncate(fd, 0)
            os.ftruncate(fd, self._position)
        self._freed = end


def _behind_line(fd: int, position: int) -> int:
    """The position behind the end of the line that goes on at a position, if that is near."""
    return position + os.pread(fd, LONGEST_LINE, position).find(b"\n") + 1


def _first_data(fd: int, position: int) -> int:
    """The first position from one on that is not in a hole."""
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a hole up to the end
            return os.fstat(fd).st_size
        if error.errno == errno.EINVAL:  # a file system without holes
            return position
        raise


@cache
def _fallocate() -> Any:
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    return function


def _punch(fd: int, start: int, end: int) -> None:
    if _fallocate()(fd, _PUNCH_HOLE | _KEEP_SIZE, start, end - start) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
