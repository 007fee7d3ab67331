"""A log as it is kept: lines in numbered files of bounded size, each behind the time it came and its position.

`worker:0.log` is the newest file, `worker:0.log.1` the one before. A line is `TIME POSITION TEXT`: ISO 8601 in UTC,
and the offset of the line in all that was ever printed. So whatever moment a writer died at, the files themselves
say how far it got, and a reader that knows a position finds its place in whichever file it is by now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tfcluster.runtime.files import remove_unless_file

#: Bytes of the longest line; what is longer is kept as several.
LONGEST_LINE = 1 << 20
# Time, position, a sign.
_HEAD_ROOM = 64
# Behind the position of a line that has no end: it was too long, or nothing came after it.
_UNENDED = b"+"


@dataclass(frozen=True)
class Line:
    """One line of a log.

    Attributes:
        time: When it came, in Unix seconds.
        position: Where it begins in all that was ever printed, in bytes.
        text: It, without its end.
        next: Where the next one begins.
    """

    time: float
    position: int
    text: bytes
    next: int


def numbered(path: Path, number: int) -> Path:
    """A log's file by its number; 0 is the newest."""
    return path.with_name(f"{path.name}.{number}") if number else path


def numbers_of(path: Path) -> list[int]:
    """The numbers of a log's files, sorted; a writer that died while it renamed them leaves a gap."""
    name = re.compile(re.escape(path.name) + r"(?:\.([1-9][0-9]*))?")
    try:
        found = [match for match in map(name.fullmatch, os.listdir(path.parent)) if match]
    except FileNotFoundError:
        return []
    return sorted(int(match[1] or 0) for match in found)


def files_of(path: Path) -> list[Path]:
    """The files of a log that there are, oldest first."""
    return [numbered(path, number) for number in reversed(numbers_of(path))]


def parse(line: bytes) -> Line | None:
    """A line of a file, without its end; None for one that nobody wrote as a line of a log."""
    try:
        time, place, text = line.split(b" ", 2)
        position = int(place.removesuffix(_UNENDED))
        moment = datetime.fromisoformat(time.decode().removesuffix("Z")).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return Line(moment.timestamp(), position, text, position + len(text) + (not place.endswith(_UNENDED)))


def last_line(file: int, size: int) -> Line | None:
    """The last whole line among the first `size` bytes of an open file; None where there is none."""
    for length in (1 << 13, LONGEST_LINE + _HEAD_ROOM):
        start = max(0, size - length)
        *whole, _ = os.pread(file, size - start, start).split(b"\n")
        for line in reversed(whole[1:] if start else whole):  # the first may be the end of one
            if found := parse(line):
                return found
        if not start:
            break
    return None


def end_of(path: Path) -> int:
    """The position behind the last line of a log; 0 where there is none."""
    for each in reversed(files_of(path)):
        with suppress(FileNotFoundError), each.open("rb") as file:
            if found := last_line(file.fileno(), file.seek(0, os.SEEK_END)):
                return found.next
    return 0


def _remove_special(path: Path) -> None:
    """Remove a pipe, or a link to a device, that somebody has put in a file's place; a folder is an error soon."""
    if not path.is_dir():
        remove_unless_file(path)


class KeptLog:
    """The writer of a log; there is one at a time.

    Args:
        path: The newest file.
        size: Bytes of each file; only a single line can make it more.
        count: How many files there are at most.
    """

    def __init__(self, path: Path, size: int, count: int) -> None:
        self._path = path
        self._size = size
        self._count = count

    @property
    def room(self) -> int:
        """Bytes of what is kept."""
        return self._size * self._count

    def recover(self) -> int:
        """Mend what a writer that died, or an earlier limit, left; the position behind the last line, 0 without one."""
        for path in files_of(self._path):
            _remove_special(path)
        for path in files_of(self._path)[: -self._count]:
            path.unlink()
        with suppress(FileNotFoundError), self._path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LONGEST_LINE - _HEAD_ROOM))
            unfinished = len(file.read().rpartition(b"\n")[2])
            file.truncate(size - unfinished)
        return end_of(self._path)

    def append(self, data: bytes, position: int, time: float) -> None:
        """Append what was printed.

        Args:
            data: Whole lines, or the beginning of one whose end is not to be waited for.
            position: Where it begins.
            time: When it came, in Unix seconds.

        Raises:
            OSError: It could not be written, or only a part of it; `recover` says which.
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
            written = 0
            while written < len(data):
                written += os.write(fd, data[written:])
        finally:
            os.close(fd)

    def _rotate(self) -> None:
        """Give each file the next number, up to a gap that an earlier try may have left; the last one goes."""
        if self._count == 1:
            self._path.unlink()
            return
        free = 1
        while free < self._count - 1 and numbered(self._path, free).exists():
            free += 1
        for number in range(free, 0, -1):
            numbered(self._path, number - 1).replace(numbered(self._path, number))


def _entries(data: bytes, position: int, time: float) -> Iterator[bytes]:
    """Printed lines as they stand in the files."""
    date = datetime.fromtimestamp(time, timezone.utc)
    moment = f"{date:%Y-%m-%dT%H:%M:%S}.{date.microsecond // 1000:03}Z".encode()
    *lines, rest = data.split(b"\n")
    for line in lines:
        yield b"%s %d %s\n" % (moment, position, line)
        position += len(line) + 1
    if rest:
        yield b"%s %d%s %s\n" % (moment, position, _UNENDED, rest)
