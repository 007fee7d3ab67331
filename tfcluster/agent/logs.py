"""Reading log files: the last lines, and what is appended later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

_BLOCK = 1 << 16
_POLL_SECONDS = 0.05


def tail(path: Path, lines: int | None, *, partial: bool = True) -> tuple[list[str], int]:
    """The last lines of a file, and the offset behind them.

    Args:
        path: The file; one that is missing counts as empty.
        lines: How many; None for all.
        partial: Whether a last line without its end counts; who goes on reading gets it whole later.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            data, start = b"", end
            # One more than asked for, because the first may have begun in an earlier block.
            while start > 0 and (lines is None or data.count(b"\n") <= lines):
                size = min(_BLOCK, start)
                start -= size
                file.seek(start)
                data = file.read(size) + data
    except FileNotFoundError:
        return [], 0
    *whole, last = data.split(b"\n")
    if last and partial:
        whole.append(last)
    elif last:
        end -= len(last)
    if lines is not None:
        whole = whole[-lines:] if lines else []
    return [line.decode(errors="replace") for line in whole], end


async def follow_all(paths: Mapping[str, Path], offsets: Mapping[str, int]) -> AsyncIterator[tuple[str, str]]:
    """Whole lines that are appended to files behind their offsets, each with its file's key, without end."""
    places = dict(offsets)
    rests = dict.fromkeys(paths, b"")
    while True:
        quiet = True
        for key, path in paths.items():
            data = _read(path, places[key])
            places[key] += len(data)
            quiet = quiet and not data
            *lines, rests[key] = (rests[key] + data).split(b"\n")
            for line in lines:
                yield key, line.decode(errors="replace")
        if quiet:
            await asyncio.sleep(_POLL_SECONDS)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_BLOCK)
    except FileNotFoundError:
        return b""
