"""A log with rotation: numbered files of bounded size, whose lines begin with a timestamp and a position.

`worker:0.log` is the newest file, `worker:0.log.1` the one before it. A line has the form `TIME POSITION TEXT`: the
time in ISO 8601, UTC, and the offset of the line in the task's whole output. If a writer is killed at any moment, the
files themselves show how far it got. A reader that knows a position finds the line again in any of the files,
whatever rotations have happened since.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tfcluster import settings
from tfcluster.os.files import write_all

# An upper bound of the bytes that the time, the position and the mark of a partial line take in front of the text.
_MAX_HEADER = 64
# Follows the position of a partial line, which has no newline in the output: the line was too long, or nothing was
# printed after it.
_PARTIAL = b"+"


@dataclass(frozen=True)
class Line:
    """One line of a log."""

    time: float  # when it was captured, in Unix seconds
    position: int  # offset in the task's whole output, in bytes
    text: bytes  # without the newline
    next_offset: int  # the offset of the next line
    member: str | None = None  # the short name of the member's task, of the output of a group


def numbered(path: Path, number: int) -> Path:
    """Return the path of the file of a log that has a number; 0 is the newest file."""
    return path.with_name(f"{path.name}.{number}") if number else path


def numbers_of(path: Path) -> list[int]:
    """Return the sorted numbers of a log's files.

    A writer that was killed during a rotation leaves a gap in the numbers.
    """
    name = re.compile(re.escape(path.name) + r"(?:\.([1-9][0-9]*))?")
    try:
        matches = [match for match in map(name.fullmatch, os.listdir(path.parent)) if match]
    except FileNotFoundError:
        return []
    return sorted(int(match[1] or 0) for match in matches)


def files_of(path: Path) -> list[Path]:
    """Return the existing files of a log, oldest first."""
    return [numbered(path, number) for number in reversed(numbers_of(path))]


def parse(line: bytes) -> Line | None:
    """Parse a line of a log file, without its newline; return None if it does not have the format of a log line."""
    try:
        time, place, text = line.split(b" ", 2)
        position = int(place.removesuffix(_PARTIAL))
        moment = datetime.fromisoformat(time.decode().removesuffix("Z")).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Line(moment.timestamp(), position, text, position + len(text) + (not place.endswith(_PARTIAL)))


def last_line(file: int, size: int) -> Line | None:
    """Return the last complete line among the first `size` bytes of a log file, or None if there is none."""
    for length in (1 << 13, settings.LOG_LINE_MAX_BYTES + _MAX_HEADER):
        start = max(0, size - length)
        *lines, _ = os.pread(file, size - start, start).split(b"\n")
        for line in reversed(lines[1:] if start else lines):  # the first may be the tail of a line
            if parsed := parse(line):
                return parsed
        if not start:
            break
    return None


def end_of(path: Path) -> int:
    """Return the position after the last line of a log, or 0 if the log has no line."""
    for each in reversed(files_of(path)):
        with suppress(FileNotFoundError), each.open("rb") as file:
            if line := last_line(file.fileno(), file.seek(0, os.SEEK_END)):
                return line.next_offset
    return 0


def _remove_special(path: Path) -> None:
    """Remove a pipe, or a link to a device, at a file's place; a directory is an error later."""
    with suppress(FileNotFoundError):
        if not (path.is_dir() or stat.S_ISREG(path.lstat().st_mode)):
            path.unlink()


class RotatingLog:
    """Writes a log with rotation. A log has one writer at a time.

    `size` is the maximum size of each file in bytes. A single longer line can exceed it.
    """

    def __init__(self, path: Path, size: int, count: int) -> None:
        self._path = path
        self._size = size
        self._count = count

    @property
    def capacity(self) -> int:
        """Return the capacity of the log in bytes."""
        return self._size * self._count

    def recover(self) -> int:
        """Repair the files after a writer was killed, and delete files beyond a limit that has been lowered.

        Return the position after the last line, or 0 if the log has no line.
        """
        for path in files_of(self._path):
            _remove_special(path)
        for path in files_of(self._path)[: -self._count]:
            path.unlink()
        with suppress(FileNotFoundError), self._path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - settings.LOG_LINE_MAX_BYTES - _MAX_HEADER))
            unfinished = len(file.read().rpartition(b"\n")[2])
            file.truncate(size - unfinished)
        return end_of(self._path)

    def append(self, data: bytes, position: int, time: float) -> None:
        """Append captured output and rotate the files when the newest one is full.

        Args:
            data: Complete lines, or a partial line whose end is not awaited.
            position: The position of `data` in the task's whole output.
            time: The time at which it was captured, in Unix seconds.

        Raises:
            OSError: Nothing or only a part could be written. `recover` returns the position up to which it was.
        """
        size = self._path.stat().st_size if self._path.exists() else 0
        unwritten: list[bytes] = []
        for entry in _entries(data, position, time):
            if size and size + len(entry) > self._size:
                self._write(b"".join(unwritten))
                unwritten.clear()
                self._rotate()
                size = 0
            unwritten.append(entry)
            size += len(entry)
        self._write(b"".join(unwritten))

    def _write(self, data: bytes) -> None:
        if not data:
            return
        _remove_special(self._path)
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def _rotate(self) -> None:
        """Rename each file to the next number and drop the oldest file.

        If an interrupted rotation has left a gap in the numbers, only the files before the gap are renamed.
        """
        if self._count == 1:
            self._path.unlink()
            return
        free = 1
        while free < self._count - 1 and numbered(self._path, free).exists():
            free += 1
        for number in range(free, 0, -1):
            numbered(self._path, number - 1).replace(numbered(self._path, number))


def _entries(data: bytes, position: int, time: float) -> Iterator[bytes]:
    """Yield the lines of captured output in the format of the log's files."""
    date = datetime.fromtimestamp(time, UTC)
    moment = f"{date:%Y-%m-%dT%H:%M:%S}.{date.microsecond // 1000:03}Z".encode()
    *lines, rest = data.split(b"\n")
    for line in lines:
        yield b"%s %d %s\n" % (moment, position, line)
        position += len(line) + 1
    if rest:
        yield b"%s %d%s %s\n" % (moment, position, _PARTIAL, rest)


class LineLog:
    """Appends lines to a rotating log. Lines that cannot be written, as on a full disk, are written with later ones."""

    def __init__(self, path: Path) -> None:
        self._log = RotatingLog(path, settings.EVENT_LOG_FILE_BYTES, settings.EVENT_LOG_FILES)
        self._position: int | None = None
        self._unwritten: list[tuple[bytes, float]] = []

    def append(self, lines: bytes, now: float) -> None:
        """Append complete lines that were written at a time."""
        self._unwritten = [*self._unwritten[1 - settings.LOG_UNWRITTEN_MAX :], (lines, now)]
        try:
            while self._unwritten:
                if self._position is None:
                    self._position = self._log.recover()
                lines, now = self._unwritten[0]
                self._log.append(lines, self._position, now)
                self._position += len(lines)
                del self._unwritten[0]
        except OSError:
            self._position = None  # a part of a line may have been written: find the end of the log again
