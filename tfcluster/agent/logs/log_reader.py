"""Reads a task's log as one stream of lines: first from the rotated log files, then from the log buffer.

The log writer, another process, moves lines from the log buffer to the files, and renames and removes the files, while
they are read. Therefore a reader identifies lines by their positions, and reads from files that it holds open: an open
file remains the same file when it is renamed or removed.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.logs.log_file import LogSegment
from tfcluster.processes.logs import log_buffer
from tfcluster.processes.logs.rotating_log import Line, numbered, numbers_of
from tfcluster.processes.runs.stored_output import missing_text


class _MovedError(Exception):
    """The requested lines are no longer in the log buffer because the log writer has moved them."""


class LogReader:
    """Reads the lines of one log.

    Args:
        log: The newest file of the log; None for raw output, which is not rotated, but may be freed in the middle.
        log_buffer_path: The log buffer, which continues after the files; None if there is none.
    """

    def __init__(self, log: Path | None, log_buffer_path: Path | None = None) -> None:
        self._log = log
        self._log_buffer = log_buffer_path

    @property
    def paths(self) -> tuple[Path | None, Path | None]:
        """The arguments of this reader, from which another process makes one of its own."""
        return self._log, self._log_buffer

    @property
    def folders(self) -> set[Path]:
        """The folders in which the log is written."""
        return {path.parent for path in (self._log, self._log_buffer) if path is not None}

    def end(self) -> int:
        """Return the position after the end of all output."""
        if self._log_buffer is not None and (size := log_buffer.size_of(self._log_buffer)) is not None:
            return size
        with self._files() as files:
            return files[-1].end if files else 0

    def start_of_last(self, count: int, end: int, *, partial: bool) -> int:
        """Return the position at which the last `count` lines before the position `end` begin.

        With `partial`, a last line without a newline counts.
        """
        for _ in range(settings.LOG_READ_RETRIES):
            with suppress(_MovedError):
                return self._start_of_last(count, end, partial)
        return end

    def _start_of_last(self, count: int, end: int, partial: bool) -> int:
        with self._files() as files:
            files_end = min(files[-1].end, end) if files else 0
            buffered = deque((line.position for line in self._buffered_lines(files_end, end, partial)), maxlen=count)
            start, missing = buffered[0] if buffered else end, count - len(buffered)
            for file in reversed(files):
                if missing:
                    lines, start = file.last(missing, before=files_end)
                    missing -= lines
        return start

    def start_since(self, time: float) -> int:
        """Return the position of the first line that was printed at or after a Unix time."""
        with self._files() as files:
            for file in files:
                if (position := file.first_since(time)) is not None:
                    return position
            return files[-1].end if files else 0

    def end_until(self, time: float) -> int:
        """Return the position after the last line that was printed at or before a past Unix time.

        What a run has printed has no times: then this is the position after the end of all output.
        """
        with self._files() as files:
            for file in files:
                if (position := file.first_since(math.nextafter(time, math.inf))) is not None:
                    return position
            return files[-1].end if files else self.end()

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
                for line in file.lines(position):
                    if line.position >= end:
                        return
                    position = line.next_offset
                    yield line
        yield from self._buffered_lines(position, end, partial)

    def _buffered_lines(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        """Yield the lines between two positions from the log buffer, and one for each part of raw output that is freed.

        Raises _MovedError if the log writer has moved the lines to the log files in the meantime, or they were freed.
        """
        while self._log is None and self._log_buffer is not None and position < end:
            freed = log_buffer.find_freed(self._log_buffer, position)
            if freed is None or freed[0] >= end:
                break
            start, next_position, time = freed
            yield from self._stored_lines(position, start, partial=True)
            yield Line(time, start, missing_text(next_position - start).encode(), next_position)
            position = next_position
        yield from self._stored_lines(position, end, partial)

    def _stored_lines(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        """Yield the lines between two positions from the log buffer; as `_buffered_lines`."""
        while self._log_buffer is not None and position < end:
            block = log_buffer.read(self._log_buffer, position, min(end - position, settings.LOG_LINE_MAX_BYTES))
            if block is None:
                raise _MovedError
            data, time = block
            *complete, rest = data.split(b"\n")
            for text in complete:
                line = Line(time, position, text, position + len(text) + 1)
                position = line.next_offset
                yield line
            if not complete:
                if rest and (partial or len(rest) == settings.LOG_LINE_MAX_BYTES):
                    yield Line(time, position, rest, position + len(rest))
                if len(rest) < settings.LOG_LINE_MAX_BYTES:
                    return
                position += len(rest)

    @contextmanager
    def _files(self) -> Iterator[list[LogSegment]]:
        """Open the log's files and yield those that contain lines, oldest first."""
        if self._log is None:
            yield []
            return
        with ExitStack() as stack:
            segments: dict[int, LogSegment] = {}
            highest = max(numbers_of(self._log), default=-1)
            # Open the newest file first: a file that is renamed meanwhile is found again under its next number, so that
            # no file is missed.
            for number in itertools.count():
                try:
                    file = LogSegment(stack.enter_context(numbered(self._log, number).open("rb", buffering=0)))
                    segments.setdefault(file.inode, file)
                except FileNotFoundError:
                    if number > highest:
                        break
            # Measure only when all files are open: then each file that has a newer one is complete, and there is no gap
            # after the end of any file.
            for file in segments.values():
                file.measure()
            yield sorted((file for file in segments.values() if file.size), key=lambda file: file.start)
