"""Streams a run's events and output while they are written, from the first event to the result (like `tail -f`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.logs.textfile import read_block
from tfcluster.protocol.codec import Message


class _Lines:
    """Reads the lines of a growing file.

    Args:
        path: The file.
        longest: Maximum length of a line in bytes. A longer line is split into pieces; None for no limit.
    """

    def __init__(self, path: Path, longest: int | None = None) -> None:
        self._path = path
        self._longest = longest
        self._offset = 0
        self._rest = b""

    def more(self) -> tuple[list[bytes], bool]:
        """Return the lines that the next block of the file completes, and whether there was nothing to read."""
        data = read_block(self._path, self._offset)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._longest is not None:
            lines = [piece for line in lines for piece in _pieces(line, self._longest)]
            *pieces, self._rest = _pieces(self._rest, self._longest)
            lines += pieces
        return lines, not data

    def last(self) -> list[bytes]:
        """Return the text after the last newline as a line. Call it when nothing more will be written."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def _pieces(line: bytes, longest: int) -> list[bytes]:
    return [line[at : at + longest] for at in range(0, max(1, len(line)), longest)]


async def follow(
    events: Path, output: Path | None, active: Callable[[], bool], wait: Callable[[], Awaitable[None]]
) -> AsyncIterator[Message]:
    """Stream a run's events and, optionally, the lines of its output.

    Output that was printed before an event is yielded before it. The result is yielded last, once the run has ended.

    Args:
        events: The file that holds the run's events.
        output: The file that holds the run's output, whose lines are yielded as events; None to leave it out.
        active: Returns whether the run is active.
        wait: Waits until more may have been written.

    Yields:
        The events.
    """
    written = _Lines(events)
    printed = None if output is None else _Lines(output, settings.RUN_OUTPUT_LINE_MAX_BYTES)
    result: Message | None = None
    while True:
        ended = not active()  # checked before reading, so that the last writes are not missed
        lines, quiet = written.more()
        found = _events(lines)
        if found and found[0]["event"] == "run":  # written before any driver could print
            yield found.pop(0)
        if printed is not None:
            async for line in _printed(printed):
                yield _output(line)
        for event in found:
            if event["event"] == "result":
                result = event
            else:
                yield event
        if quiet and ended:
            break
        if quiet:
            await wait()
    if printed is not None:
        for line in printed.last():
            yield _output(line)
    if result is not None:
        yield result


async def from_place(messages: AsyncIterator[Message], events: int, output: int) -> AsyncIterator[Message]:
    """Skip the first events of a stream, for a client that received them before its agent died.

    Args:
        messages: All events.
        events: Number of events to skip that are not output.
        output: Number of output events to skip.

    Yields:
        The remaining events.
    """
    left = {True: output, False: events}
    async for message in messages:
        kind = message["event"] == "output"
        if left[kind]:
            left[kind] -= 1
        else:
            yield message


def _events(lines: list[bytes]) -> list[Message]:
    """Return the events on the given lines, without lines that a full disk has truncated."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


async def _printed(lines: _Lines) -> AsyncIterator[bytes]:
    """Yield all lines printed so far. Other asyncio tasks get to run after each block."""
    while True:
        found, quiet = lines.more()
        for line in found:
            yield line
        if quiet:
            return
        await asyncio.sleep(0)


def _output(line: bytes) -> Message:
    return {"event": "output", "line": line.decode(errors="replace")}
