"""Reading log files: the last lines, and what is appended later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

_BLOCK = 1 << 16
_POLL_SECONDS = 0.05


def tail(path: Path, lines: int | None) -> tuple[list[str], int]:
    """The last lines of a file, and the offset behind them.

    Args:
        path: The file; one that is missing counts as empty.
        lines: How many; None for all.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            data, start = b"", end
            while start > 0 and (lines is None or data.count(b"\n") <= lines):
                start = max(0, start - _BLOCK)
                file.seek(start)
                data = file.read(min(_BLOCK, end - start - len(data))) + data
    except FileNotFoundError:
        return [], 0
    found = data.decode(errors="replace").splitlines()
    if lines is not None:
        found = found[-lines:] if lines else []
    return found, end


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
