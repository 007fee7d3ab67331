"""A run's events and output as they are written, from its first to its result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from tfcluster.agent.logs.textfile import read_block
from tfcluster.protocol.codec import Message

#: A line of output that is longer comes in pieces, in bytes.
_LONGEST = 1 << 18


class _Lines:
    """The lines of a file that grows; those longer than `longest` bytes, if that is given, come in pieces."""

    def __init__(self, path: Path, longest: int | None = None) -> None:
        self._path = path
        self._longest = longest
        self._offset = 0
        self._rest = b""

    def more(self) -> tuple[list[bytes], bool]:
        """The lines that the next block completes, and whether there was nothing to read."""
        data = read_block(self._path, self._offset)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._longest is not None:
            lines = [piece for line in lines for piece in _pieces(line, self._longest)]
            *pieces, self._rest = _pieces(self._rest, self._longest)
            lines += pieces
        return lines, not data

    def last(self) -> list[bytes]:
        """What stands behind the last line's end, once nothing more is written."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def _pieces(line: bytes, longest: int) -> list[bytes]:
    return [line[at : at + longest] for at in range(0, max(1, len(line)), longest)]


async def follow(
    events: Path, output: Path | None, active: Callable[[], bool], wait: Callable[[], Awaitable[None]]
) -> AsyncIterator[Message]:
    """The run's events; the result comes last, once the run has ended.

    What was printed before an event comes before it.

    Args:
        events: The file of its events.
        output: The file of its output, whose lines come as events too; None to leave it.
        active: Whether the run goes on.
        wait: Waits for a moment in which more may have been written.
    """
    written = _Lines(events)
    printed = None if output is None else _Lines(output, _LONGEST)
    result: Message | None = None
    while True:
        ended = not active()  # before the reading, so that nothing written since is missed
        lines, quiet = written.more()
        found = _events(lines)
        if found and found[0]["event"] == "run":  # written before there was a driver to print anything
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
    """Events without the first of them, for somebody who had those before the agent was lost.

    Args:
        messages: All events.
        events: How many to leave out of those that are not output.
        output: How many to leave out of those that are.
    """
    left = {True: output, False: events}
    async for message in messages:
        kind = message["event"] == "output"
        if left[kind]:
            left[kind] -= 1
        else:
            yield message


def _events(lines: list[bytes]) -> list[Message]:
    """The events on lines; one that a full disk cut short is none."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


async def _printed(lines: _Lines) -> AsyncIterator[bytes]:
    """All that has been printed by now; others get their turn after each block."""
    while True:
        found, quiet = lines.more()
        for line in found:
            yield line
        if quiet:
            return
        await asyncio.sleep(0)


def _output(line: bytes) -> Message:
    return {"event": "output", "line": line.decode(errors="replace")}
