"""Reads a task's log as one stream of lines: first from the rotated log files, then from the log buffer.

The log writer, another process, moves lines from the log buffer to the files, and renames and removes the files, while
they are read. Therefore a reader identifies lines by their positions, and reads from files that it holds open: an open
file remains the same file when it is renamed or removed.
"""

from __future__ import annotations

import io
import itertools
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from tfcluster import settings
from tfcluster.agent.event_loop import Turn
from tfcluster.os.files import first_data
from tfcluster.processes.logs import log_buffer
from tfcluster.processes.logs.rotating_log import Line, last_line, numbered, numbers_of, parse
from tfcluster.processes.runs.stored_output import OutputPart, missing_text, read_begin

# Number of bytes to read of a line for its time and position, which take less, and for the name of a task.
_PREFIX_BYTES = 512

T = TypeVar("T")


class _MovedError(Exception):
    """The requested lines are no longer in the log buffer because the log writer has moved them."""


@dataclass(frozen=True)
class LogReader:
    """Reads the lines of one log."""

    log: Path | None  # its newest file; None for raw output, which is not rotated, but may be freed in the middle
    buffer: Path | None = None  # the log buffer, which continues after the files; None if there is none
    index: Path | None = None  # the index of raw output, which has its times; None if it has none

    @property
    def folders(self) -> set[Path]:
        """The folders in which the log is written."""
        return {path.parent for path in (self.log, self.buffer) if path is not None}

    def end(self) -> int:
        """Return the position after the end of all output."""
        if self.buffer is not None and (size := log_buffer.size_of(self.buffer)) is not None:
            return size
        with self._files() as files:
            return files[-1].end if files else 0

    async def start_of_last(self, count: int, end: int, *, partial: bool) -> int:
        """Return the position at which the last `count` lines before the position `end` begin.

        With `partial`, a last line without a newline counts.
        """
        turn = Turn()
        for _ in range(settings.LOG_READ_RETRIES):
            with suppress(_MovedError):
                return await self._start_of_last(count, end, partial, turn)
        return end

    async def _start_of_last(self, count: int, end: int, partial: bool, turn: Turn) -> int:
        with self._files() as files:
            files_end = min(files[-1].end, end) if files else 0
            ranges = self._stored_ranges(files_end, end)
            start, missing = end, count
            while ranges and missing:
                begin, stop = ranges.pop()
                read = self._read_stored
                found, start = await _find_last(read, begin, stop, missing, turn, partial=partial or stop < end)
                missing -= found
                if ranges and missing:  # what was freed before it is one line
                    start, missing = ranges[-1][1], missing - 1
            for file in reversed(files):
                if missing:
                    found, start = await file.last(missing, files_end, turn)
                    missing -= found
        return start

    def time_of_last(self, text: bytes) -> float | None:
        """Return the time of the last line in the log's files that contains a text; None if there is no such line."""
        with self._files() as files:
            times = (file.time_of_last(text) for file in reversed(files))
            return next((time for time in times if time is not None), None)

    async def start_since(self, time: float) -> int:
        """Return the position of the first line that was printed at or after a Unix time; 0 if there are no times."""
        if self.log is None:
            return await self._start_of_raw(lambda written: written >= time, 0)
        with self._files() as files:
            for file in files:
                if (position := file.first_since(time)) is not None:
                    return position
            return files[-1].end if files else 0

    async def end_until(self, time: float) -> int:
        """Return the position after the last line that was printed at or before a past Unix time.

        For output without times, this is the position after the end of all output.
        """
        if self.log is None:
            return await self._start_of_raw(lambda written: written > time, self.end())
        with self._files() as files:
            for file in files:
                if (position := file.first_since(math.nextafter(time, math.inf))) is not None:
                    return position
            return files[-1].end if files else self.end()

    async def _start_of_raw(self, matches: Callable[[float], bool], without_times: int) -> int:
        """Return the position of the first line of raw output that ends at a time that satisfies a predicate."""
        with self._output_index() as index:
            if index is None:
                return without_times
            position = index.first_offset(matches)
        if position is None:
            return self.end()
        begin, _ = self._stored_ranges(0, position)[-1]
        with suppress(_MovedError):  # it is freed just now
            if begin < position and self._read_stored(position - 1, 1) != b"\n":
                _, position = await _find_last(self._read_stored, begin, position, 1, Turn(), partial=True)
        return position

    def lines(self, start: int, end: int, *, partial: bool) -> Generator[Line, None, None]:
        """Yield the available lines between two positions; a line begins at `start`.

        With `partial`, a last line without a newline is included. A caller that continues to read leaves it out and
        gets the complete line later.
        """
        if start >= end:  # nothing new, the usual case for a follower that polls: open no file
            return
        position = start
        for _ in range(settings.LOG_READ_RETRIES):
            try:
                for line in self._lines(position, end, partial):
                    position = line.next_offset
                    yield line
                return
            except _MovedError:
                continue

    def _lines(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        with self._files() as files:
            for file in files:
                for line in file.lines_from(position):
                    if line.position >= end:
                        return
                    position = line.next_offset
                    yield line
        yield from self._buffered_lines(position, end, partial)

    def _buffered_lines(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        """Yield the lines between two positions from the log buffer, and one for each part of raw output that is freed.

        Raises _MovedError if the log writer has moved the lines to the log files in the meantime, or they were freed.
        """
        ranges = self._stored_ranges(position, end)
        with self._output_index() as times:
            for (start, stop), following in zip(ranges, [*ranges[1:], None], strict=True):
                yield from self._stored_lines(start, stop, partial or following is not None, times)
                if following is not None:
                    _, time = self._read_buffer(following[0], 0)
                    time = times.find(following[0], time)[0] if times else time
                    yield Line(time, stop, missing_text(following[0] - stop).encode(), following[0])

    def _stored_ranges(self, position: int, end: int) -> list[tuple[int, int]]:
        """Return the parts between two positions that the log buffer has; what is between them was freed."""
        ranges: list[tuple[int, int]] = []
        while self.log is None and self.buffer is not None and position < end:
            freed = log_buffer.find_freed(self.buffer, position)
            if freed is None or freed[0] >= end:
                break
            ranges.append((position, freed[0]))
            position = freed[1]
        return [*ranges, (position, end)]

    def _read_buffer(self, position: int, size: int) -> tuple[bytes, float]:
        """Read output from the log buffer, with the time of the last write; raise _MovedError as `_buffered_lines`."""
        block = None if self.buffer is None else log_buffer.read(self.buffer, position, size)
        if block is None:
            raise _MovedError
        return block

    def _read_stored(self, position: int, size: int) -> bytes:
        """Read so many bytes of output from the log buffer; raise _MovedError as `_buffered_lines`."""
        data, _ = self._read_buffer(position, size)
        if len(data) < size:  # the file was truncated
            raise _MovedError
        return data

    def _stored_lines(self, position: int, end: int, partial: bool, times: OutputIndex | None) -> Iterator[Line]:
        """Yield the lines between two positions from the log buffer; as `_buffered_lines`."""
        while self.buffer is not None and position < end:
            data, time = self._read_buffer(position, min(end - position, settings.LOG_LINE_MAX_BYTES))
            *complete, rest = data.split(b"\n")
            for text in complete:
                next_position = position + len(text) + 1
                written, member = times.find(next_position - 1, time) if times else (time, None)
                yield Line(written, position, text, next_position, member)
                position = next_position
            if not complete:
                if rest and (partial or len(rest) == settings.LOG_LINE_MAX_BYTES):
                    next_position = position + len(rest)
                    written, member = times.find(next_position - 1, time) if times else (time, None)
                    yield Line(written, position, rest, next_position, member)
                if len(rest) < settings.LOG_LINE_MAX_BYTES:
                    return
                position += len(rest)

    @contextmanager
    def _output_index(self) -> Iterator[OutputIndex | None]:
        """Open the index of raw output; yield None if there is none that has times."""
        with ExitStack() as stack:
            index = None
            with suppress(FileNotFoundError):
                if self.index is not None:
                    file = stack.enter_context(self.index.open("rb", buffering=0))
                    begin = read_begin(file.fileno())
                    index = None if begin is None else OutputIndex(file.fileno(), begin)
            yield index

    @contextmanager
    def _files(self) -> Iterator[list[LogSegment]]:
        """Open the log's files and yield those that contain lines, oldest first."""
        if self.log is None:
            yield []
            return
        with ExitStack() as stack:
            segments: dict[int, LogSegment] = {}
            highest = max(numbers_of(self.log), default=-1)
            # Open the newest file first: a file that is renamed meanwhile is found again under its next number, so that
            # no file is missed.
            for number in itertools.count():
                try:
                    file = LogSegment(stack.enter_context(numbered(self.log, number).open("rb", buffering=0)))
                    segments.setdefault(file.inode, file)
                except FileNotFoundError:
                    if number > highest:
                        break
            # Measure only when all files are open: then each file that has a newer one is complete, and there is no gap
            # after the end of any file.
            for file in segments.values():
                file.measure()
            yield sorted((file for file in segments.values() if file.size), key=lambda file: file.start)


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
        found, offset = await _find_last(self.read, 0, end, count, turn, partial=False)
        first = self.line_from(offset)
        return (found, first[1].position) if first is not None and found else (0, before)


def last_up(events: Path) -> float | None:
    """Return the time of the latest event `up`, with which the cluster began; None if it is not in the log any more."""
    return LogReader(events).time_of_last(b'"event":"up"')


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


def last_lines(path: Path, max_bytes: int, count: int) -> list[str]:
    """Return the last lines of a file, at most `count`, and of long ones only the end; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
            data = file.read(max_bytes)
    except OSError:
        return []
    return data.lstrip(b"\0").decode(errors="replace").splitlines()[-count:]  # a log buffer begins with a hole


def offset_after_newlines(file: BinaryIO, end: int, count: int) -> int:
    """Return the offset after the `count`th newline before `end`, counting backwards, or 0 if there are fewer."""
    for offset, block in _blocks_backwards(partial(_read_at, file), 0, end):
        newlines = block.count(b"\n")
        if newlines >= count:
            return offset + _after_newline(block, count)
        count -= newlines
    return 0


async def _find_last(
    read: Callable[[int, int], bytes], start: int, end: int, count: int, turn: Turn, *, partial: bool
) -> tuple[int, int]:
    """Find the last lines of a range, at most `count`: return how many there are, and the offset of the first.

    That is `end` if there is none. With `partial`, a last line without a newline counts.
    """
    has_rest = partial and start < end and read(end - 1, 1) != b"\n"
    found = int(has_rest)
    for offset, block in _blocks_backwards(read, start, end):
        newlines = block.count(b"\n")
        if found + newlines > count:
            return count, offset + _after_newline(block, count + 1 - found)
        found += newlines
        await turn.pause()
    return found, start if found else end


def _blocks_backwards(read: Callable[[int, int], bytes], start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Read a range in blocks, the last one first; yield each with its offset."""
    while end > start:
        size = min(settings.IO_BLOCK_BYTES, end - start)
        end -= size
        yield end, read(end, size)


def _after_newline(block: bytes, count: int) -> int:
    """Return the index after the `count`th newline of a block, counting backwards."""
    at = len(block)
    for _ in range(count):
        at = block.rindex(b"\n", 0, at)
    return at + 1


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
