"""The capture buffer of a task: the file that its process writes stdout and stderr to, until the log writer copies it.

A capture buffer is a regular file, not a pipe. It needs no reader: the process appends to it whether or not the agent
and the log writer are alive, so the process never blocks and no line is lost. After a range has been copied to the
rotating log, a hole is punched in the file (fallocate): the disk space is freed, but offsets do not change. An offset
in the file is the position of a line in the task's whole output. A recreated file therefore begins with a hole as
long as all the output before it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from tfcluster import settings
from tfcluster.os.files import UNSUPPORTED, first_data, first_hole, punch
from tfcluster.processes.logs.rotating_log import RotatingLog, end_of


def prepare(path: Path, log: Path) -> None:
    """Create the capture buffer for a task's process, unless an earlier process has left one.

    The positions in the buffer continue from the end of `log`, the newest file of the task's rotating log.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with suppress(FileExistsError), open(os.open(path, flags, 0o600), "wb", 0) as file:
        file.truncate(end_of(log))


def read(path: Path, position: int, size: int) -> tuple[bytes, float] | None:
    """Read captured output from a position on.

    Return the output, and the time of the last write to the file in Unix seconds. Return None if the output at
    `position` has been freed or the file does not exist.
    """
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        fd = file.fileno()
        data = os.pread(fd, size, position)
        # Check for a hole after reading, not before: holes only grow, so data that is not in a hole now was not in one
        # during the read either.
        end = position + len(data)
        is_intact = not data or (first_data(fd, position) == position and first_hole(fd, position) >= end)
        return (data, os.fstat(fd).st_mtime) if is_intact else None
    return None


def find_freed(path: Path, position: int) -> tuple[int, int] | None:
    """Find the first part of raw output that was freed at or after a position; short lines are freed as a whole.

    A line begins at `position`. Return where the part begins and ends; None if there is no such part.
    """
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        fd = file.fileno()
        status = os.fstat(fd)
        hole = first_hole(fd, position)
        if hole >= status.st_size:
            return None
        end = first_data(fd, hole)
        before = max(position, hole - status.st_blksize)
        text = os.pread(fd, hole - before, before)
        start = before + text.rfind(b"\n") + 1 if b"\n" in text or before == position else hole
        return start, end + os.pread(fd, status.st_blksize, end).find(b"\n") + 1
    return None


def size_of(path: Path) -> int | None:
    """Return the position after the last captured byte, or None if the file does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


class LogBuffer:
    """Copies a task's output from its capture buffer to its rotating log.

    This object is the only writer of `log`.
    """

    def __init__(self, path: Path, log: RotatingLog) -> None:
        self._path = path
        self._log = log
        self._position: int | None = None  # everything before this position is in the log
        self._freed = 0

    def drain(self, *, ended: bool = False) -> bool:
        """Copy the next block of complete lines to the log.

        If the buffer holds more output than the log has capacity for, the oldest output is skipped. The log writer
        can thus keep up with a task that prints faster than the log can be written.

        With `ended`, the task will print nothing more, so a last line without a newline is treated as complete. Return
        whether there may be more to copy. Raises OSError: the output could not be read or written. The next call tries
        again.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self._drain(fd, ended)
        except OSError:
            self._position = None  # a part may have been written: `recover` finds out how much
            raise
        finally:
            os.close(fd)

    def _drain(self, fd: int, ended: bool) -> bool:
        if self._position is None:
            self._position = self._log.recover()
        position, end = self._position, os.fstat(fd).st_size
        # The file has been truncated, as `echo > /proc/PID/fd/2` does. Move its contents to the old position, so that
        # positions continue to grow.
        if end < position:
            moved = os.pread(fd, settings.LOG_LINE_MAX_BYTES, 0)
            os.ftruncate(fd, position)
            end = position + os.pwrite(fd, moved, position)
        if position == end:
            return False
        position = first_data(fd, position)
        if end - position > self._log.capacity:
            position = _offset_after_line(fd, end - self._log.capacity)
        data = os.pread(fd, settings.LOG_LINE_MAX_BYTES, position)
        lines = data[: data.rfind(b"\n") + 1]
        if not lines and (ended or len(data) == settings.LOG_LINE_MAX_BYTES):
            lines = data
        self._log.append(lines, position, time.time())
        self._position = position + len(lines)
        self._free(fd, self._position - settings.LOG_BUFFER_KEPT_BYTES)
        return bool(lines)

    def _free(self, fd: int, end: int) -> None:
        end -= end % os.fstat(fd).st_blksize  # a partial block would not be freed, but read as zeros
        if end - self._freed < settings.LOG_BUFFER_FREED_BYTES:
            return
        try:
            punch(fd, self._freed, end)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            # The file system cannot punch holes, so the space can be freed only by truncating the whole file. Output
            # that is printed between the two ftruncate calls is lost.
            if self._position != os.fstat(fd).st_size:
                return
            os.ftruncate(fd, 0)
            os.ftruncate(fd, self._position)
        self._freed = end


def _offset_after_line(fd: int, position: int) -> int:
    """Return the position after the end of the line that contains a position.

    This is `position` itself if there is no newline within `settings.LOG_LINE_MAX_BYTES` bytes.
    """
    return position + os.pread(fd, settings.LOG_LINE_MAX_BYTES, position).find(b"\n") + 1
