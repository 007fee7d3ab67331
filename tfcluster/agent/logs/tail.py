"""Finds the last lines of files, which are read backwards and only as far as needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tfcluster import settings
from tfcluster.agent.event_loop import Turn


def tail(path: Path, lines: int) -> tuple[list[str], int]:
    """Read the last lines of a file, including a last line without a newline; return them and the offset after them.

    A missing file counts as empty.
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


async def find_last(
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
