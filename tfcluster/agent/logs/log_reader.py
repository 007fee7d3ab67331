"""All that a task printed and that is still kept, as one stream of lines: in numbered files first, then in its spool.

Another process moves lines from the spool to the files, renames the files and removes them while they are read. A
reader goes by the lines' positions, and by files that it has opened: those stay what they are.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tfcluster.agent.logs.log_segment import LogSegment
from tfcluster.processes.logs import log_buffer
from tfcluster.processes.logs.rotating_log import LONGEST_LINE, Line, numbered, numbers_of

# How often to try again when lines are moved faster than they are found.
_TRIES = 20


class _MovedError(Exception):
    """What was looked for in the spool is no longer there."""


class LogReader:
    """The lines of one log.

    Args:
        log: Its newest file.
        spooled: What goes on behind the files; None where nothing does.
    """

    def __init__(self, log: Path, spooled: Path | None = None) -> None:
        self._log = log
        self._spool = spooled

    def end(self) -> int:
        """The position behind all that was printed."""
        if self._spool is not None and (size := log_buffer.size_of(self._spool)) is not None:
            return size
        with self._files() as files:
            return files[-1].end if files else 0

    def start_of_last(self, count: int, end: int, *, partial: bool) -> int:
        """The position at which the last `count` lines before `end` begin.

        Args:
            count: How many.
            end: A position.
            partial: Whether a last line without its end counts.
        """
        for _ in range(_TRIES):
            with suppress(_MovedError):
                return self._start_of_last(count, end, partial)
        return end

    def _start_of_last(self, count: int, end: int, partial: bool) -> int:
        with self._files() as files:
            kept = min(files[-1].end, end) if files else 0
            unkept = deque((line.position for line in self._spooled(kept, end, partial)), maxlen=count)
            start, missing = unkept[0] if unkept else end, count - len(unkept)
            for file in reversed(files):
                if missing:
                    found, start = file.last(missing, before=kept)
                    missing -= found
        return start

    def start_since(self, time: float) -> int:
        """The position of the first line that came at a time, in Unix seconds, or later."""
        with self._files() as files:
            for file in files:
                if (found := file.first_since(time)) is not None:
                    return found
            return files[-1].end if files else 0

    def lines(self, start: int, end: int, *, partial: bool) -> Generator[Line, None, None]:
        """The lines between two positions that are kept.

        Args:
            start: Where a line begins.
            end: Where to end.
            partial: Whether a last line without its end counts; who goes on reading gets it whole later.
        """
        if start >= end:  # nothing new, as a follower finds it again and again: no file is opened for it
            return
        position = start
        for _ in range(_TRIES):
            try:
                for line in self._lines(position, end, partial):
                    position = line.next
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
                    position = line.next
                    yield line
        yield from self._spooled(position, end, partial)

    def _spooled(self, position: int, end: int, partial: bool) -> Iterator[Line]:
        """The lines between two positions that are not kept yet.

        Raises:
            _MovedError: They are by now.
        """
        while self._spool is not None and position < end:
            printed = log_buffer.read(self._spool, position, min(end - position, LONGEST_LINE))
            if printed is None:
                raise _MovedError
            data, time = printed
            *whole, rest = data.split(b"\n")
            for text in whole:
                line = Line(time, position, text, position + len(text) + 1)
                position = line.next
                yield line
            if not whole:
                if rest and (partial or len(rest) == LONGEST_LINE):
                    yield Line(time, position, rest, position + len(rest))
                if len(rest) < LONGEST_LINE:
                    return
                position += len(rest)

    @contextmanager
    def _files(self) -> Iterator[list[LogSegment]]:
        """The log's files that have lines, oldest first."""
        with ExitStack() as stack:
            found: dict[int, LogSegment] = {}
            highest = max(numbers_of(self._log), default=-1)
            # Newest first: a file that is renamed meanwhile is met again under its next number, and none is missed.
            for number in itertools.count():
                try:
                    file = LogSegment(stack.enter_context(numbered(self._log, number).open("rb", buffering=0)))
                    found.setdefault(file.inode, file)
                except FileNotFoundError:
                    if number > highest:
                        break
            # When all are open: one with a newer one beside it is complete, and none has a gap behind its end.
            for file in found.values():
                file.measure()
            yield sorted((file for file in found.values() if file.size), key=lambda file: file.start)
