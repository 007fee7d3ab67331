"""Reading plain files of lines: the last lines, a block."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 16


def tail(path: Path, lines: int) -> tuple[list[str], int]:
    """The last lines of a file, a last one without its end among them, and the offset behind them.

    The file is read backwards, only as far as is needed.

    Args:
        path: The file; one that is missing counts as empty.
        lines: How many.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # What ends with the end of a line has that as one more.
            ends_whole = end > 0 and _read_at(file, end - 1, 1) == b"\n"
            start = behind_newline(file, end, lines + ends_whole) if lines else end
            data = _read_at(file, start, end - start)
    except FileNotFoundError:
        return [], 0
    found = data.removesuffix(b"\n").split(b"\n") if data else []
    return [line.decode(errors="replace") for line in found], end


def behind_newline(file: BinaryIO, end: int, count: int) -> int:
    """The offset behind the `count`th newline before `end`, counting backwards; 0 where there are fewer."""
    start = end
    while start > 0:
        size = min(_BLOCK, start)
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
    """What a file has at an offset, at most 64 KiB; nothing where it is missing or ends."""
    try:
        with path.open("rb") as file:
            return _read_at(file, offset, _BLOCK)
    except FileNotFoundError:
        return b""
