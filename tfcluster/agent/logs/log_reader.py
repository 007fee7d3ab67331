"""Reads a log as one stream of lines, which are identified by their positions, while other processes write it.

The log of a task is read first from the rotated log files, then from the log buffer. The log writer, another process,
moves lines from the log buffer to the files, and renames and removes the files, while they are read. So a reader reads
from files that it holds open: an open file remains the same file when it is renamed or removed.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.event_loop import Turn
from tfcluster.agent.logs.sorted_lines import LogSegment, OutputIndex
from tfcluster.agent.logs.tail import find_last
from tfcluster.processes.logs import log_buffer
from tfcluster.processes.logs.rotating_log import Line, numbered, numbers_of
from tfcluster.processes.runs.stored_output import missing_text, read_begin


class _MovedError(Exception):
    """The requested lines are no longer in a file: the log writer has moved them, or they were freed."""


class LogReader(ABC):
    """Reads the lines of one log; `paths` are the arguments from which the class makes the same reader."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths

    @property
    @abstractmethod
    def folders(self) -> set[Path]:
        """The folders in which the log is written."""

    @abstractmethod
    def end(self) -> int:
        """Return the position after the end of all output."""

    @abstractmethod
    async def start_since(self, time: float) -> int:
        """Return the position of the first line that was printed at or after a Unix time; 0 if there are no times."""

    @abstractmethod
    async def end_until(self, time: float) -> int:
        """Return the position after the last line that was printed at or before a past Unix time.

        For output without times, this is the position after the end of all output.
        """

    async def start_of_last(self, count: int, end: int, *, partial: bool) -> int:
        """Return the position at which the last `count` lines before the position `end` begin.

        With `partial`, a last line without a newline counts.
        """
        turn = Turn()
        for _ in range(settings.LOG_READ_RETRIES if count else 0):
            with suppress(_MovedError):
                return await self._start_of_last(count, end, partial, turn)
        return end

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

    @abstractmethod
    async def _start_of_last(self, count: int, end: int, partial: bool, turn: Turn) -> int:
        """Find the start of the last lines, see `start_of_last`; raise _MovedError if they are moved meanwhile."""

    @abstractmethod
    def _lines(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        """Yield lines, see `lines`; raise _MovedError if they are moved meanwhile."""


class RotatedLog(LogReader):
    """Reads a log of rotated files, such as that of the events; `path` is the newest one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    @property
    def folders(self) -> set[Path]:
        """See `LogReader.folders`."""
        return {self._path.parent}

    def end(self) -> int:
        """See `LogReader.end`."""
        with self._files() as files:
            return files[-1].end if files else 0

    async def start_since(self, time: float) -> int:
        """See `LogReader.start_since`."""
        with self._files() as files:
            position = _first_since(files, time)
            return (files[-1].end if files else 0) if position is None else position

    async def end_until(self, time: float) -> int:
        """See `LogReader.end_until`."""
        with self._files() as files:
            position = _first_since(files, math.nextafter(time, math.inf))
            return (files[-1].end if files else self.end()) if position is None else position

    def time_of_last(self, text: bytes) -> float | None:
        """Return the time of the last line that contains a text; None if there is no such line."""
        with self._files() as files:
            times = (file.time_of_last(text) for file in reversed(files))
            return next((time for time in times if time is not None), None)

    async def _start_of_last(self, count: int, end: int, partial: bool, turn: Turn) -> int:
        with self._files() as files:
            return await _start_in(files, count, min(files[-1].end, end) if files else end, turn)

    def _lines(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        return itertools.takewhile(lambda line: line.position < end, self._stored_lines(position))

    def _stored_lines(self, position: int) -> Iterator[Line]:
        """Yield the lines of all files from a position on."""
        with self._files() as files:
            for file in files:
                for line in file.lines_from(position):
                    position = line.next_offset
                    yield line

    @contextmanager
    def _files(self) -> Iterator[list[LogSegment]]:
        """Open the log's files and yield those that contain lines, oldest first."""
        with ExitStack() as stack:
            segments: dict[int, LogSegment] = {}
            highest = max(numbers_of(self._path), default=-1)
            # Open the newest file first: a file that is renamed meanwhile is found again under its next number, so that
            # no file is missed.
            for number in itertools.count():
                try:
                    file = LogSegment(stack.enter_context(numbered(self._path, number).open("rb", buffering=0)))
                    segments.setdefault(file.inode, file)
                except FileNotFoundError:
                    if number > highest:
                        break
            # Measure only when all files are open: then each file that has a newer one is complete, and there is no gap
            # after the end of any file.
            for file in segments.values():
                file.measure()
            yield sorted((file for file in segments.values() if file.size), key=lambda file: file.start)


def _first_since(files: Sequence[LogSegment], time: float) -> int | None:
    """Return the position of the first line that was printed at or after a Unix time; None if there is none."""
    positions = (file.first_since(time) for file in files)
    return next((position for position in positions if position is not None), None)


async def _start_in(files: Sequence[LogSegment], count: int, before: int, turn: Turn) -> int:
    """Return the position at which the last `count` lines before a position begin."""
    start = before
    for file in reversed(files):
        if count:
            found, start = await file.last(count, before, turn)
            count -= found
    return start


class TaskLog(RotatedLog):
    """Reads the log of a task: its rotated files, and after them the log buffer to which the task prints."""

    def __init__(self, path: Path, buffer: Path) -> None:
        super().__init__(path)
        self.paths = path, buffer
        self._buffer = _Buffer(buffer)

    @property
    def folders(self) -> set[Path]:
        """See `LogReader.folders`."""
        return {*super().folders, self._buffer.path.parent}

    def end(self) -> int:
        """See `LogReader.end`."""
        size = log_buffer.size_of(self._buffer.path)
        return super().end() if size is None else size

    async def _start_of_last(self, count: int, end: int, partial: bool, turn: Turn) -> int:
        with self._files() as files:
            files_end = min(files[-1].end, end) if files else 0
            read = self._buffer.read_exactly
            found, start = await find_last(read, files_end, end, count, turn, partial=partial)
            return start if found == count else await _start_in(files, count - found, files_end, turn)

    def _lines(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        for line in self._stored_lines(position):
            if line.position >= end:
                return
            position = line.next_offset
            yield line
        yield from self._buffer.lines(position, end, partial=partial)


class RawOutput(LogReader):
    """Reads the output of a run, which is not rotated but may be freed in the middle; each freed part is one line.

    `index` has the times of the output; None if there are none.
    """

    def __init__(self, path: Path, index: Path | None = None) -> None:
        super().__init__(path, *([] if index is None else [index]))
        self._buffer = _Buffer(path)
        self._index = index

    @property
    def folders(self) -> set[Path]:
        """See `LogReader.folders`."""
        return {self._buffer.path.parent}

    def end(self) -> int:
        """See `LogReader.end`."""
        return log_buffer.size_of(self._buffer.path) or 0

    async def start_since(self, time: float) -> int:
        """See `LogReader.start_since`."""
        return await self._first_line(lambda written: written >= time, 0)

    async def end_until(self, time: float) -> int:
        """See `LogReader.end_until`."""
        return await self._first_line(lambda written: written > time, self.end())

    async def _first_line(self, matches: Callable[[float], bool], without_times: int) -> int:
        """Return the position of the first line that ends at a time that satisfies a predicate."""
        with self._times() as times:
            if times is None:
                return without_times
            position = times.first_offset(matches)
        if position is None:
            return self.end()
        begin, _ = self._stored_ranges(0, position)[-1]
        read = self._buffer.read_exactly
        with suppress(_MovedError):  # it is freed just now
            if begin < position and read(position - 1, 1) != b"\n":
                _, position = await find_last(read, begin, position, 1, Turn(), partial=True)
        return position

    async def _start_of_last(self, count: int, end: int, partial: bool, turn: Turn) -> int:
        ranges = self._stored_ranges(0, end)
        start = end
        while ranges and count:
            begin, stop = ranges.pop()
            read = self._buffer.read_exactly
            found, start = await find_last(read, begin, stop, count, turn, partial=partial or stop < end)
            count -= found
            if ranges and count:  # what was freed before it is one line
                start, count = ranges[-1][1], count - 1
        return start

    def _lines(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        ranges = self._stored_ranges(position, end)
        with self._times() as times:
            for (start, stop), following in zip(ranges, [*ranges[1:], None], strict=True):
                yield from self._buffer.lines(start, stop, times, partial=partial or following is not None)
                if following is not None:
                    _, time = self._buffer.read(following[0], 0)
                    time = times.find(following[0], time)[0] if times else time
                    yield Line(time, stop, missing_text(following[0] - stop).encode(), following[0])

    def _stored_ranges(self, position: int, end: int) -> list[tuple[int, int]]:
        """Return the parts between two positions that are stored; what is between them was freed."""
        ranges: list[tuple[int, int]] = []
        while position < end:
            freed = log_buffer.find_freed(self._buffer.path, position)
            if freed is None or freed[0] >= end:
                break
            ranges.append((position, freed[0]))
            position = freed[1]
        return [*ranges, (position, end)]

    @contextmanager
    def _times(self) -> Iterator[OutputIndex | None]:
        """Open the index; yield None if there is none that has times."""
        with ExitStack() as stack:
            index = None
            with suppress(FileNotFoundError):
                if self._index is not None:
                    file = stack.enter_context(self._index.open("rb", buffering=0))
                    begin = read_begin(file.fileno())
                    index = None if begin is None else OutputIndex(file.fileno(), begin)
            yield index


class _Buffer:
    """A file to which a program prints, whose positions are those of the log; see `log_buffer`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, position: int, size: int) -> tuple[bytes, float]:
        """Read output, with the time of the last write; raise _MovedError if it is not there any more."""
        block = log_buffer.read(self.path, position, size)
        if block is None:
            raise _MovedError
        return block

    def read_exactly(self, position: int, size: int) -> bytes:
        """Read so many bytes; raise _MovedError if they are not there any more."""
        data, _ = self.read(position, size)
        if len(data) < size:  # the file was truncated
            raise _MovedError
        return data

    def lines(self, position: int, end: int, times: OutputIndex | None = None, *, partial: bool) -> Iterator[Line]:
        """Yield the lines between two positions; `partial` as in `LogReader.lines`."""
        while position < end:
            data, time = self.read(position, min(end - position, settings.LOG_LINE_MAX_BYTES))
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


#: The readers by their names.
READERS = {reader.__name__: reader for reader in (RotatedLog, TaskLog, RawOutput)}


def last_up(events: Path) -> float | None:
    """Return the time of the latest event `up`, with which the cluster began; None if it is not in the log any more."""
    return RotatedLog(events).time_of_last(b'"event":"up"')
