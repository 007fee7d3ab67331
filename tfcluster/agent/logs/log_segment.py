"""One open file of a kept log: finding a line in it by position, time or number, without reading all of it."""

from __future__ import annotations

import io
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator

from tfcluster.agent.logs.textfile import behind_newline
from tfcluster.processes.logs.rotating_log import Line, last_line, parse

_BLOCK = 1 << 16
# More than time and position take.
_HEAD = 128


class LogSegment:
    """A file of a log, of which only what was there when it was measured counts.

    Attributes:
        inode: Tells it apart, whatever its name is by now.
        size: Bytes up to the end of the last whole line; 0 until it is measured, or when there is none.
        start: The position of its first line.
        end: The position behind its last line.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.inode = os.fstat(file.fileno()).st_ino
        self.size = self.start = self.end = 0

    def measure(self) -> None:
        """Take what is there now as the whole file."""
        size = behind_newline(self._file, os.fstat(self._file.fileno()).st_size, 1)
        last = last_line(self._file.fileno(), size)
        self.size = size
        if last is None:
            self.size = 0
        else:
            first = self._line_from(0)
            assert first is not None, "there is at least the last one"
            self.start, self.end = first[1].position, last.next

    def lines(self, position: int) -> Iterator[Line]:
        """The lines from a position on."""
        if position >= self.end:
            return
        offset = self._offset(lambda line: line.position >= position)
        rest = b""
        while offset < self.size:
            block = self._read(offset, _BLOCK)
            offset += len(block)
            *whole, rest = (rest + block).split(b"\n")
            for text in whole:
                if line := parse(text):
                    yield line

    def first_since(self, time: float) -> int | None:
        """The position of the first line of a time, in Unix seconds, or later; None where there is none."""
        found = self._line_from(self._offset(lambda line: line.time >= time))
        return None if found is None else found[1].position

    def last(self, count: int, before: int) -> tuple[int, int]:
        """How many lines, of the last `count` before a position, it has, and the position of the first of them."""
        end = self._offset(lambda line: line.position >= before)
        offset = behind_newline(self._file, end, count + 1)
        if not offset:
            count = sum(self._read(at, min(_BLOCK, end - at)).count(b"\n") for at in range(0, end, _BLOCK))
        found = self._line_from(offset)
        return (0, before) if found is None or not count else (count, found[1].position)

    def _offset(self, wanted: Callable[[Line], bool]) -> int:
        """The offset of the first line that is wanted, where all behind it are too; the size where none is."""

        def is_behind(offset: int) -> bool:
            found = self._line_from(offset)
            return found is None or wanted(found[1])

        found = self._line_from(bisect_left(range(self.size), True, key=is_behind))
        return self.size if found is None else found[0]

    def _line_from(self, offset: int) -> tuple[int, Line] | None:
        """The first line that begins at an offset or behind it, cut behind its head, and where it begins."""
        # What begins at an offset has the end of another just before.
        start = offset if not offset else self._behind_next_newline(offset - 1)
        while start < self.size:
            if line := parse(self._read(start, _HEAD).partition(b"\n")[0]):
                return start, line
            start = self._behind_next_newline(start)
        return None

    def _behind_next_newline(self, offset: int) -> int:
        while offset < self.size:
            block = self._read(offset, _BLOCK >> 4)
            if (at := block.find(b"\n")) >= 0:
                return offset + at + 1
            offset += len(block)
        return self.size

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), min(size, self.size - offset), offset)
