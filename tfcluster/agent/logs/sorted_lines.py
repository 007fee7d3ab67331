"""Searches files whose lines are sorted by time and position: those of a rotated log, and the index of raw output."""

from __future__ import annotations

import io
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tfcluster import settings
from tfcluster.agent.event_loop import Turn
from tfcluster.agent.logs.tail import find_last, offset_after_newlines
from tfcluster.os.files import first_data
from tfcluster.processes.logs.rotating_log import Line, last_line, parse
from tfcluster.processes.runs.stored_output import OutputPart

# Number of bytes to read of a line for its time and position, which take less, and for the name of a task.
_PREFIX_BYTES = 512

T = TypeVar("T")


class SortedLines(Generic[T]):
    """Searches the lines of a file, which are sorted; what `parse` does not accept, and what was freed, is no line."""

    def __init__(self, fd: int, size: int, parse: Callable[[bytes], T | None]) -> None:
        self._fd = fd
        self.size = size  # number of bytes to search
        self._parse = parse

    def offset(self, matches: Callable[[T], bool]) -> int:
        """Return the offset of the first line that satisfies a predicate, or the size if no line does.

        This is a binary search: if a line satisfies the predicate, all lines after it must satisfy it too.
        """

        def is_behind(offset: int) -> bool:
            following = self.line_from(offset)
            return following is None or matches(following[1])

        first = self.line_from(bisect_left(range(self.size), True, key=is_behind))
        return self.size if first is None else first[0]

    def line_from(self, offset: int) -> tuple[int, T] | None:
        """Find the first line that begins at or after an offset; None if there is no such line.

        Returns the offset at which the line begins, and the line, whose text is truncated.
        """
        # A line begins at the offset if the byte before it is a newline.
        start = offset if not offset else self._offset_after_next_newline(offset - 1)
        while (start := first_data(self._fd, start)) < self.size:
            prefix = self.read(start, _PREFIX_BYTES)
            if line := self._parse(prefix.partition(b"\n")[0]):
                return start, line
            # What was freed is read as zeros up to the end of a block.
            start = self._offset_after_next_newline(start) if prefix[:1] != b"\0" else start + _leading_zeros(prefix)
        return None

    def lines(self, matches: Callable[[T], bool]) -> Iterator[T]:
        """Yield the lines from the first one on that satisfies a predicate; see `offset`."""
        offset = self.offset(matches)
        rest = b""
        while offset < self.size:
            if (stored := first_data(self._fd, offset)) > offset:
                offset, rest = stored, b""
            block = self.read(offset, settings.IO_BLOCK_BYTES)
            if not block:  # the file has been truncated
                return
            offset += len(block)
            *complete, rest = (rest + block).split(b"\n")
            for text in complete:
                if line := self._parse(text):
                    yield line

    def read(self, offset: int, size: int) -> bytes:
        """Read a part of the file."""
        return os.pread(self._fd, min(size, self.size - offset), offset)

    def _offset_after_next_newline(self, offset: int) -> int:
        while (offset := first_data(self._fd, offset)) < self.size:
            block = self.read(offset, settings.IO_BLOCK_BYTES >> 4)
            if (at := block.find(b"\n")) >= 0:
                return offset + at + 1
            if not block:  # the file has been truncated
                break
            offset += len(block)
        return self.size


def _leading_zeros(data: bytes) -> int:
    return len(data) - len(data.lstrip(b"\0"))


class OutputIndex(SortedLines[OutputPart]):
    """The index of a run's output, which began at a Unix time: when each part was written, and by which member."""

    def __init__(self, fd: int, begin: float) -> None:
        super().__init__(fd, os.fstat(fd).st_size, OutputPart.parse)
        self._begin = begin
        self._following: Iterator[OutputPart] | None = None
        self._part: OutputPart | None = None  # the last one that was read
        self._before: OutputPart | None = None

    def first_offset(self, matches: Callable[[float], bool]) -> int | None:
        """Return the offset of the first part with a time that satisfies a predicate, as all after it must."""
        first = self.line_from(self.offset(lambda part: matches(self._begin + part.time)))
        return None if first is None else first[1].offset

    def find(self, position: int, default: float) -> tuple[float, str | None]:
        """Return when the byte at a position was written, the default if it is not recorded yet, and by which member.

        The position must not be before that of the previous call. Of what was freed, the ends of some blocks are left:
        these have the time of the next part that is recorded.
        """
        if self._following is None:
            self._following = self.lines(lambda part: part.offset + part.size > position)
        while self._part is None or self._part.offset + self._part.size <= position:
            self._before, self._part = self._part, next(self._following, None)
            if self._part is None:
                return default, None
        part = self._part
        if self._before is not None and part.offset > position:
            is_nearer = position - self._before.offset - self._before.size < part.offset - position
            part = self._before if is_nearer else part
        return self._begin + part.time, part.task


class LogSegment(SortedLines[Line]):
    """A snapshot of one file of a log: its content at the time when it was measured.

    Attributes:
        inode: The inode number, which identifies the file after it was renamed.
        size: Number of bytes up to the end of the last complete line; 0 before `measure`, or if there is no line.
        start: The position of the first line.
        end: The position after the last line.
    """

    def __init__(self, file: io.FileIO) -> None:
        super().__init__(file.fileno(), 0, parse)
        self._file = file
        self.inode = os.fstat(file.fileno()).st_ino
        self.start = self.end = 0

    def measure(self) -> None:
        """Take the current content as the snapshot: set `size`, `start` and `end`."""
        size = offset_after_newlines(self._file, os.fstat(self._file.fileno()).st_size, 1)
        last = last_line(self._file.fileno(), size)
        self.size = size
        if last is None:
            self.size = 0
        else:
            first = self.line_from(0)
            assert first is not None, "there is at least the last one"
            self.start, self.end = first[1].position, last.next_offset

    def lines_from(self, position: int) -> Iterator[Line]:
        """Yield the lines that begin at or after a position."""
        return self.lines(lambda line: line.position >= position) if position < self.end else iter(())

    def first_since(self, time: float) -> int | None:
        """Return the position of the first line that was printed at or after a Unix time; None if there is none."""
        first = self.line_from(self.offset(lambda line: line.time >= time))
        return None if first is None else first[1].position

    def time_of_last(self, text: bytes) -> float | None:
        """Return the time of the last line that contains a text; None if there is no such line."""
        data = self.read(0, self.size)
        at = data.rfind(text)
        line = parse(data[data.rfind(b"\n", 0, at) + 1 : data.find(b"\n", at)]) if at >= 0 else None
        return None if line is None else line.time

    async def last(self, count: int, before: int, turn: Turn) -> tuple[int, int]:
        """Find the last lines before a position, at most `count`.

        Returns the number of lines found in this file, and the position of the first of them; 0 and `before` if there
        are none.
        """
        end = self.offset(lambda line: line.position >= before)
        found, offset = await find_last(self.read, 0, end, count, turn, partial=False)
        first = self.line_from(offset)
        return (found, first[1].position) if first is not None and found else (0, before)
