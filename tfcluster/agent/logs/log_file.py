"""Reads log files: the last lines of a plain file, and the lines of a rotated file by position, time or count."""

from __future__ import annotations

import io
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tfcluster import settings
from tfcluster.processes.logs.rotating_log import Line, last_line, parse

# Number of bytes to read of a line for its time and position, which take less.
_PREFIX_BYTES = 128


def tail(path: Path, lines: int) -> tuple[list[str], int]:
    """Read the last lines of a file, including a last line without a newline; return them and the offset after them.

    The file is read backwards, and only as far as needed. A missing file counts as empty.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # If the file ends with a newline, that is one more newline to count.
            ends_whole = end > 0 and _read_at(file, end - 1, 1) == b"\n"
            start = offset_after_newlines(file, end, lines + ends_whole) if lines else end
            data = _read_at(file, start, end - start)
    except FileNotFoundError:
        return [], 0
    raw_lines = data.removesuffix(b"\n").split(b"\n") if data else []
    return [line.decode(errors="replace") for line in raw_lines], end


def offset_after_newlines(file: BinaryIO, end: int, count: int) -> int:
    """Return the offset after the `count`th newline before `end`, counting backwards, or 0 if there are fewer."""
    start = end
    while start > 0:
        size = min(settings.IO_BLOCK_BYTES, start)
        start -= size
        block = _read_at(file, start, size)
        newlines = block.count(b"\n")
        if newlines < count:
            count -= newlines
            continue
        at = len(block)
        for _ in range(count):
            at = block.rindex(b"\n", 0, at)
        return start + at + 1
    return 0


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


class LogSegment:
    """A snapshot of one file of a log: its content at the time when it was measured.

    Attributes:
        inode: The inode number, which identifies the file after it was renamed.
        size: Number of bytes up to the end of the last complete line; 0 before `measure`, or if there is no line.
        start: The position of the first line.
        end: The position after the last line.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.inode = os.fstat(file.fileno()).st_ino
        self.size = self.start = self.end = 0

    def measure(self) -> None:
        """Take the current content as the snapshot: set `size`, `start` and `end`."""
        size = offset_after_newlines(self._file, os.fstat(self._file.fileno()).st_size, 1)
        last = last_line(self._file.fileno(), size)
        self.size = size
        if last is None:
            self.size = 0
        else:
            first = self._line_from(0)
            assert first is not None, "there is at least the last one"
            self.start, self.end = first[1].position, last.next_offset

    def lines(self, position: int) -> Iterator[Line]:
        """Yield the lines that begin at or after a position."""
        if position >= self.end:
            return
        offset = self._offset(lambda line: line.position >= position)
        rest = b""
        while offset < self.size:
            block = self._read(offset, settings.IO_BLOCK_BYTES)
            offset += len(block)
            *complete, rest = (rest + block).split(b"\n")
            for text in complete:
                if line := parse(text):
                    yield line

    def first_since(self, time: float) -> int | None:
        """Return the position of the first line that was printed at or after a Unix time; None if there is none."""
        first = self._line_from(self._offset(lambda line: line.time >= time))
        return None if first is None else first[1].position

    def last(self, count: int, before: int) -> tuple[int, int]:
        """Find the last lines before a position, at most `count`.

        Returns the number of lines found in this file, and the position of the first of them; 0 and `before` if there
        are none.
        """
        end = self._offset(lambda line: line.position >= before)
        offset = offset_after_newlines(self._file, end, count + 1)
        if not offset:
            count = sum(
                self._read(at, min(settings.IO_BLOCK_BYTES, end - at)).count(b"\n")
                for at in range(0, end, settings.IO_BLOCK_BYTES)
            )
        first = self._line_from(offset)
        return (0, before) if first is None or not count else (count, first[1].position)

    def _offset(self, matches: Callable[[Line], bool]) -> int:
        """Return the offset of the first line that satisfies a predicate, or the size if no line does.

        This is a binary search: if a line satisfies the predicate, all lines after it must satisfy it too.
        """

        def is_behind(offset: int) -> bool:
            following = self._line_from(offset)
            return following is None or matches(following[1])

        first = self._line_from(bisect_left(range(self.size), True, key=is_behind))
        return self.size if first is None else first[0]

    def _line_from(self, offset: int) -> tuple[int, Line] | None:
        """Find the first line that begins at or after an offset; None if there is no such line.

        Returns the offset at which the line begins, and the line, whose text is truncated.
        """
        # A line begins at the offset if the byte before it is a newline.
        start = offset if not offset else self._offset_after_next_newline(offset - 1)
        while start < self.size:
            if line := parse(self._read(start, _PREFIX_BYTES).partition(b"\n")[0]):
                return start, line
            start = self._offset_after_next_newline(start)
        return None

    def _offset_after_next_newline(self, offset: int) -> int:
        while offset < self.size:
            block = self._read(offset, settings.IO_BLOCK_BYTES >> 4)
            if (at := block.find(b"\n")) >= 0:
                return offset + at + 1
            offset += len(block)
        return self.size

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), min(size, self.size - offset), offset)
