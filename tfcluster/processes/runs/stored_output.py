"""What is stored of a run's output: its beginning and its end, within the limit that the spec sets.

A run's output is two files: what the program has written, byte for byte and in the order of arrival, and an index with
a line `STREAM OFFSET SIZE TASK TIME` for each part. The task is the short name of the member's in a group of processes,
else empty. The time is milliseconds after that in the first line, which is `time` and milliseconds since 1970. Earlier
versions have written no times. What exceeds the limit is freed in the middle of both files, which leaves holes: no
offset changes, and a reader finds what is missing from the offsets in the index.

A command that the output is for, such as `run`, gets all of it. The agent holds what it has not yet read by a lock on
this range of the file (of the open file description: it ends with the agent), and while it cannot be freed, the output
of the program is not read either, as that of a program in a pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from tfcluster import settings
from tfcluster.core.text import format_size
from tfcluster.os.files import UNSUPPORTED, first_data, first_hole, punch
from tfcluster.processes.runs.run_plan import OUTPUT, OUTPUT_INDEX

_BLOCK_BYTES = 512  # the unit of st_blocks
_NEVER = float("inf")
_BEGIN = b"time "


class OutputPart(NamedTuple):
    """A part of the output: the offset and the text of its line in the index, and what this line says."""

    at: int
    line: bytes
    stream: str
    task: str | None
    offset: int
    size: int
    time: float  # when it was written, in seconds after the begin of the output; 0 if that is not recorded

    @classmethod
    def parse(cls, line: bytes, at: int = 0) -> OutputPart | None:
        """Return the part of a line; None if the line was truncated by a full disk, or freed, or is the first one."""
        text = line.rpartition(b"\0")[2]  # what was freed is read as zeros
        try:
            stream, offset, size, *more = text.decode().split(" ")
            task, time = [*more, *("", "0")[len(more) :]]
            return cls(at + len(line) - len(text), text, stream, task or None, int(offset), int(size), int(time) / 1000)
        except ValueError:
            return None


def read_begin(index: int) -> float | None:
    """Return the time that the first line of an index has, in Unix seconds; None if it is of an earlier version."""
    line, newline, _ = os.pread(index, settings.IO_BLOCK_BYTES >> 4, 0).partition(b"\n")
    try:
        return int(line.removeprefix(_BEGIN)) / 1000 if newline and line.startswith(_BEGIN) else None
    except ValueError:
        return None


class OutputRecorder:
    """Appends to the output of a run, and frees what exceeds the limit.

    `limit` is the bytes that the two files may take together.
    """

    def __init__(self, folder: Path, limit: int = settings.RUN_OUTPUT_BYTES) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._output = os.open(folder / OUTPUT, flags, 0o600)
        self._index = os.open(folder / OUTPUT_INDEX, flags, 0o600)
        self._separator = ""
        self._begin = read_begin(self._index) or time.time()
        if not os.fstat(self._index).st_size:
            self._write_line(f"{_BEGIN.decode()}{round(1000 * self._begin)}")
        self._limit = limit
        # Positions between two parts: the offset in the output, and that in the index.
        self._end = os.fstat(self._output).st_size, os.fstat(self._index).st_size
        self._head = self._end  # the end of the beginning, which is kept
        self._marks = deque([self._end])  # the end of what is freed, and later ones up to which more can be freed
        self._can_punch = True
        # Until when to wait for the command that the output is for, and whose agent died.
        self._wait_until = _NEVER if _is_locked(self._output, 0) else 0.0
        self.lost_bytes = 0  # how many bytes could not be written, because the disk is full

    def append(self, stream: str, data: bytes, task: str = "") -> None:
        """Append what has arrived on a stream; a full disk keeps no program from running.

        `task` is the short name of the member's task, for a group of processes.
        """
        if sum(self._end) - sum(self._marks[-1]) >= self._limit // settings.RUN_OUTPUT_MARKS:
            end_of_lines = data.rfind(b"\n") + 1
            self._append_part(stream, data[:end_of_lines], task)
            self._mark()
            data = data[end_of_lines:]
        self._append_part(stream, data, task)

    def _append_part(self, stream: str, data: bytes, task: str) -> None:
        size = _write(self._output, data)
        self.lost_bytes += len(data) - size
        if size:
            offset, index_end = self._end
            elapsed = round(1000 * (time.time() - self._begin))
            written, is_whole = self._write_line(f"{stream} {offset} {size} {task} {elapsed}")
            self.lost_bytes += 0 if is_whole else size
            self._end = offset + size, index_end + written

    def _write_line(self, text: str) -> tuple[int, bool]:
        """Write a line of the index; return how many bytes were written, and whether these are all."""
        line = f"{self._separator}{text}\n".encode()
        written = _write(self._index, line)
        # After a line that was truncated, the next one begins on a line of its own.
        self._separator = "" if written == len(line) else "\n"
        return written, not self._separator

    def _mark(self) -> None:
        if sum(self._end) <= self._limit // 2:
            self._head = self._end
            self._marks.clear()
        self._marks.append(self._end)

    def is_full(self) -> bool:
        """Free what exceeds the limit; return whether a command has to read it first, so that none is to be added."""
        while sum(self._end) - sum(self._marks[0]) + sum(self._head) > self._limit and len(self._marks) > 1:
            # Where no range can be freed, the rest of the file is written again: free as much as possible at once.
            count = 1 if self._can_punch else max(1, len(self._marks) - 2)
            # A command that still reads while the rest is written again would miss parts of it.
            if self._is_awaited(self._marks[count][0] if self._can_punch else self._end[0]):
                return True
            try:
                self._free(self._marks[count])
            except OSError as error:
                if error.errno in UNSUPPORTED and self._can_punch:
                    self._can_punch = False
                    continue
                return False  # such as an error of the disk: the program runs nevertheless
            for _ in range(count):
                self._marks.popleft()
        return False

    def _is_awaited(self, end: int) -> bool:
        """Return whether a command has to read the output up to a position; one whose agent died may still return."""
        if _is_locked(self._output, 0):
            self._wait_until = _NEVER
            return _is_locked(self._output, end)
        self._wait_until = min(self._wait_until, time.monotonic() + settings.RUN_OWNER_RECONNECT_SECONDS)
        return time.monotonic() < self._wait_until

    def _free(self, mark: tuple[int, int]) -> None:
        """Free all between the beginning and a position.

        The index is first: a reader that finds a part's line there after it has read the part has read all of it.
        """
        block = os.fstat(self._output).st_blksize  # whole blocks: holes show what is missing, and zeros may be output
        ranges = (
            (self._index, self._head[1], mark[1]),
            (self._output, -(-self._head[0] // block) * block, mark[0] // block * block),
        )
        for fd, start, end in ranges:
            if start >= end:
                continue
            if self._can_punch:
                punch(fd, start, end)
            else:
                rest = os.pread(fd, os.fstat(fd).st_size - end, end)
                os.ftruncate(fd, start)
                os.ftruncate(fd, end)
                _write(fd, rest)


def _write(fd: int, data: bytes) -> int:
    """Write as much as possible to a file and return the number of bytes."""
    size = 0
    with contextlib.suppress(OSError):  # the disk is full
        while size < len(data):
            size += os.write(fd, data[size:])
    return size


class OutputHold:
    """Keeps the output of a run, from a position on, until it is read.

    Raises OSError: the file system has no such locks, or no file can be created.
    """

    def __init__(self, folder: Path, position: int) -> None:
        self._fd = os.open(folder / OUTPUT, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_open = True
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, position, 0))
        except OSError:
            self.close()
            raise

    def move(self, position: int) -> None:
        """Give up what is before a position."""
        if self._is_open and position:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, 0, position))

    def close(self) -> None:
        """Give up all; a process that was forked meanwhile may have the descriptor for a moment longer."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, 0, 0))
            os.close(self._fd)


def _is_locked(fd: int, end: int) -> bool:
    """Return whether a command has not read a file up to a position, or up to its end if that is 0."""
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, 0, end))
    except OSError:
        return False
    kind: int = struct.unpack_from("h", found)[0]
    return kind != fcntl.F_UNLCK


def _lock(kind: int, start: int, length: int) -> bytes:
    """Return a `struct flock`; without a length, it is about all that follows."""
    return struct.pack("hhlli", kind, os.SEEK_SET, start, length, 0)


def missing_text(size: int) -> str:
    """Return the line that a reader of a run's output gets in place of a part that is not stored."""
    return f"[tfcluster: {format_size(size)} of the output are not stored: `logs:` in the spec has the limits]"


def missing_bytes(folder: Path) -> int:
    """Return how much of a run's output is not stored."""
    missing, position = 0, 0
    with contextlib.suppress(OSError), (folder / OUTPUT).open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        while status.st_blocks * _BLOCK_BYTES < status.st_size and position < status.st_size:
            hole = first_hole(file.fileno(), position)
            position = max(first_data(file.fileno(), hole), hole + 1)
            missing += min(position, status.st_size) - hole
    return missing


def stored_bytes(folder: Path) -> int:
    """Return the space that the output of a run takes on the disk."""
    size = 0
    for name in (OUTPUT, OUTPUT_INDEX):
        with contextlib.suppress(OSError):
            size += (folder / name).stat().st_blocks * _BLOCK_BYTES
    return size


def free_all(folder: Path) -> None:
    """Free the output of a run that has ended, unless a command still has to read it."""
    for name in (OUTPUT_INDEX, OUTPUT):
        with open(folder / OUTPUT, "rb") as output, open(folder / name, "r+b") as file:
            if not _is_locked(output.fileno(), 0):
                size = file.seek(0, os.SEEK_END)
                file.truncate(0)
                file.truncate(size)
