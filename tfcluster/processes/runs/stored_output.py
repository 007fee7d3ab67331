"""What is stored of a run's output: its beginning and its end, within the limit that the spec sets.

A run's output is two files: what the program has written, byte for byte and in the order of arrival, and an index with
a line `STREAM OFFSET SIZE TASK TIME` for each part. The task is the short name of the member's in a group of processes,
else empty. The time is milliseconds after that in the first line, which is `time` and milliseconds since 1970. Earlier
versions have written no times. What exceeds the limit is freed in the middle of both files, which leaves holes: no
offset changes, and a reader finds what is missing from the offsets in the index.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from tfcluster import settings
from tfcluster.core.text import format_size
from tfcluster.os.files import UNSUPPORTED, first_data, first_hole, punch
from tfcluster.processes.runs.run_plan import OUTPUT, OUTPUT_INDEX

_BLOCK_BYTES = 512  # the unit of st_blocks
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
        self._free_excess()

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

    def _free_excess(self) -> None:
        """Free what exceeds the limit."""
        while sum(self._end) - sum(self._marks[0]) + sum(self._head) > self._limit and len(self._marks) > 1:
            # Where no range can be freed, the rest of the file is written again: free as much as possible at once.
            count = 1 if self._can_punch else max(1, len(self._marks) - 2)
            try:
                self._free(self._marks[count])
            except OSError as error:
                if error.errno in UNSUPPORTED and self._can_punch:
                    self._can_punch = False
                    continue
                return  # such as an error of the disk: the program runs nevertheless
            for _ in range(count):
                self._marks.popleft()

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
    """Free the output of a run that has ended."""
    for name in (OUTPUT_INDEX, OUTPUT):
        with open(folder / name, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.truncate(0)
            file.truncate(size)
