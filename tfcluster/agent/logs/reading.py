"""Reading log files: the last lines, and what is appended later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 16
_POLL_SECONDS = 0.05


def tail(path: Path, lines: int) -> tuple[list[str], int]:
    """The last lines of a file, a last one without its end among them, and the offset behind them.

    Args:
        path: The file; one that is missing counts as empty.
        lines: How many.
    """
    start, end = span(path, lines, partial=True)
    data = b""
    while len(data) < end - start and (block := read_block(path, start + len(data))):
        data += block
    found = data[: end - start].removesuffix(b"\n").split(b"\n") if data else []
    return [line.decode(errors="replace") for line in found], end


def span(path: Path, lines: int | None, *, partial: bool) -> tuple[int, int]:
    """Where the last lines of a file begin and end, as offsets; it is read backwards, only as far as is needed.

    Args:
        path: The file; one that is missing counts as empty.
        lines: How many; None for all.
        partial: Whether a last line without its end counts; who goes on reading gets it whole later.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            end = size if partial else _behind_newline(file, size, 1)
            if lines is None:
                return 0, end
            # What ends with the end of a line has that as one more.
            ends_whole = end > 0 and _read_at(file, end - 1, 1) == b"\n"
            return (_behind_newline(file, end, lines + ends_whole) if lines else end), end
    except FileNotFoundError:
        return 0, 0


def _behind_newline(file: BinaryIO, end: int, count: int) -> int:
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


async def lines_between(path: Path, start: int, end: int) -> AsyncIterator[str]:
    """The lines between two offsets; others get their turn after each block of a long file."""
    rest = b""
    while start < end:
        block = read_block(path, start)[: end - start]
        if not block:
            break
        start += len(block)
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        await asyncio.sleep(0)
    if rest:
        yield rest.decode(errors="replace")


async def follow_all(
    paths: Mapping[str, Path], offsets: Mapping[str, int], until: asyncio.Event
) -> AsyncIterator[tuple[str, str]]:
    """Whole lines that are appended to files behind their offsets, each with its file's key.

    Args:
        paths: The files by key; one may be missing.
        offsets: Where to begin, by key.
        until: Ends it, once what was written before is read.
    """
    places = dict(offsets)
    rests = dict.fromkeys(paths, b"")
    while True:
        last = until.is_set()  # before the reading, so that nothing written since is missed
        quiet = True
        for key, path in paths.items():
            data = read_block(path, places[key])
            places[key] += len(data)
            quiet = quiet and not data
            *lines, rests[key] = (rests[key] + data).split(b"\n")
            for line in lines:
                yield key, line.decode(errors="replace")
        if quiet and last:
            return
        if quiet:
            await asyncio.sleep(_POLL_SECONDS)


def read_block(path: Path, offset: int) -> bytes:
    """What a file has at an offset, at most 64 KiB; nothing where it is missing or ends."""
    try:
        with path.open("rb") as file:
            return _read_at(file, offset, _BLOCK)
    except FileNotFoundError:
        return b""
