"""Reads plain text files: the last lines (tail) or a block at an offset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from tfcluster import settings


def tail(path: Path, lines: int) -> tuple[list[str], int]:
    """Read the last lines of a file, including a last line without a newline.

    The file is read backwards, and only as far as needed.

    Args:
        path: The file. A missing file counts as empty.
        lines: Number of lines.

    Returns:
        The lines, and the offset after them.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # If the file ends with a newline, that is one more newline to count.
            ends_whole = end > 0 and _read_at(file, end - 1, 1) == b"\n"
            start = behind_newline(file, end, lines + ends_whole) if lines else end
            data = _read_at(file, start, end - start)
    except FileNotFoundError:
        return [], 0
    found = data.removesuffix(b"\n").split(b"\n") if data else []
    return [line.decode(errors="replace") for line in found], end


def tail_of_buffer(log_buffer: Path, lines: int, size: int) -> tuple[str, ...]:
    """Read the last lines of a task's log buffer.

    Args:
        log_buffer: The log buffer. A missing file counts as empty.
        lines: Maximum number of lines.
        size: Maximum number of bytes: a line of megabytes is truncated instead of being read.

    Returns:
        The lines.
    """
    try:
        with log_buffer.open("rb") as file:
            data = _read_at(file, max(0, file.seek(0, os.SEEK_END) - size), size)
    except OSError:
        return ()
    return tuple(data.lstrip(b"\0").decode(errors="replace").splitlines()[-lines:])  # it begins with a hole


def behind_newline(file: BinaryIO, end: int, count: int) -> int:
    """Return the offset after the `count`th newline before `end`, counting backwards, or 0 if there are fewer."""
    start = end
    while start > 0:
        size = min(settings.IO_BLOCK_BYTES, start)
        start -= size
        block = _read_at(file, start, size)
        found = block.count(b"\n")
        if found < count:
            count -= found
            continue
        at = len(block)
        for _ in range(count):
            at = block.rindex(b"\n", 0, at)
        return start + at + 1
    return 0


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def read_block(path: Path, offset: int) -> bytes:
    """Read at most 64 KiB of a file at an offset.

    Returns:
        The data; empty at the end of the file or if the file is missing.
    """
    try:
        with path.open("rb") as file:
            return _read_at(file, offset, settings.IO_BLOCK_BYTES)
    except FileNotFoundError:
        return b""
