"""Read parts of logs, and search them for regular expressions and levels in a child process.

The search is not in the agent itself, as a regular expression may never end (`(a+)+b`), and not in the command, as
most of a log would be sent in vain. The child process ends with the request.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from tfcluster.agent import subprocesses
from tfcluster.agent.logs.log_reader import LogReader
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.turns import Turn
from tfcluster.core.log_levels import LevelFilter, LogLevel, Visibility
from tfcluster.core.text import compile_patterns
from tfcluster.errors import ClusterError
from tfcluster.os.daemonize import detach
from tfcluster.processes.logs.rotating_log import Line
from tfcluster.protocol.codec import Decoder, Message, decode_line, encode
from tfcluster.protocol.serialization import decode, to_json

# The most lines that a hidden entry has, such as a dump of the options of a session.
_CONTEXT_LINES = 64


@dataclass(frozen=True)
class LogPart:
    """A part of a log."""

    log: str  # the key of the log
    reader: LogReader
    start: int  # a position at which a line begins
    end: int  # the position after the part
    last: int | None = None  # the number of the last matching lines to read, if it is searched; None for all

    def tagged_lines(self, *, partial: bool) -> Iterator[tuple[str, Line]]:
        """Yield the lines, each with the key of the log; see `LogReader.lines`."""
        return ((self.log, line) for line in self.reader.lines(self.start, self.end, partial=partial))


class LogSource:
    """Reads the lines of parts of logs in this process."""

    _hidden = 0

    def take_hidden(self) -> int:
        """Return how many entries were left out because of their level, since the latest call."""
        hidden, self._hidden = self._hidden, 0
        return hidden

    async def lines(
        self, parts: Sequence[LogPart], positions: dict[str, int], *, partial: bool
    ) -> AsyncGenerator[tuple[str, Line], None]:
        """Yield lines in the order of their times, each with the key of its log.

        `positions` has the position after the lines that have been read, by log, and is updated in place. With
        `partial`, a last line without a newline is included.
        """
        turn = Turn()
        logs = []
        for part in parts:  # each is opened before its first line is read
            lines = part.tagged_lines(partial=partial)
            logs.append(itertools.chain(list(itertools.islice(lines, 1)), lines))
            await turn.pause()
        for log, line in _merge(logs):
            positions[log] = line.next_offset
            yield log, line
            await turn.pause()


class LogSearch(LogSource):
    """Searches parts of logs for the lines that match some patterns and have a level, in a child process."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._messages = self._receive()

    async def lines(
        self, parts: Sequence[LogPart], positions: dict[str, int], *, partial: bool
    ) -> AsyncGenerator[tuple[str, Line], None]:
        """Yield the lines that match; see `LogSource.lines`.

        Raises ClusterError if a pattern is no regular expression, or the child process was killed.
        """
        self._child.send({"parts": to_json(list(parts)), "partial": partial})
        async for message in self._messages:
            if "error" in message:
                raise ClusterError.from_json(message["error"])
            if "positions" in message:
                positions.update(message["positions"])
                self._hidden += message["hidden"]
                return
            text = message["text"].encode(errors="replace")
            yield message["log"], Line(message["time"], message["position"], text, message["next"], message["member"])
        raise ClusterError("the process that searches the logs was killed", hint="The same command starts another one.")

    async def _receive(self) -> AsyncGenerator[Message, None]:
        decoder = Decoder()
        while data := await self._child.receive():
            for message in decoder.feed(data):
                yield message


@contextmanager
def open_source(title: str, patterns: Sequence[str], level: LogLevel | None) -> Iterator[LogSource]:
    """Open a source of the lines that match one of some regular expressions, if there are any, and are of a level.

    Only a search has a child process, with the given title; for OSError see `fork_child`.
    """
    if not patterns and level is None:
        yield LogSource()
        return
    child = subprocesses.fork_child(partial(_run, title, os.getpid(), patterns, level), lambda status: None)
    try:
        yield LogSearch(child)
    finally:
        child.kill()
        child.close_pipe()


def _merge(logs: Iterable[Iterator[tuple[str, Line]]]) -> Iterator[tuple[str, Line]]:
    return heapq.merge(*logs, key=lambda tagged: tagged[1].time)


def _run(title: str, agent_pid: int, patterns: Sequence[str], level: LogLevel | None, agent: socket.socket) -> None:
    """Search, in the child process, each group of parts that the agent sends."""
    detach(title, keep=[agent.fileno()], parent=agent_pid)
    try:
        criteria = _Criteria(patterns, level)
    except ClusterError as error:
        agent.sendall(encode({"error": error.to_json()}))
        agent.recv(1)  # the agent kills this process when it has read the error
        return
    with agent.makefile("rb") as requests:
        for request in map(decode_line, requests):
            parts = decode(list[LogPart], request["parts"])
            positions = {part.log: part.start for part in parts}
            for log, line, text in criteria.search(parts, positions, partial=request["partial"]):
                message = {"log": log, "time": line.time, "position": line.position, "text": text}
                agent.sendall(encode({**message, "next": line.next_offset, "member": line.member}))
            agent.sendall(encode({"positions": positions, "hidden": criteria.hidden}))
            criteria.hidden = 0


_Match = tuple[str, Line, str]  # with the key of the log, and the text


class _Criteria:
    """What lines have to be to be sent; raises ClusterError if a pattern is no regular expression.

    Attributes:
        hidden: How many entries match the patterns, but are below the level.
    """

    def __init__(self, patterns: Sequence[str], level: LogLevel | None) -> None:
        self._expressions = compile_patterns(patterns)
        self._level = level
        self._levels = LevelFilter(level or LogLevel.INFO)
        self.hidden = 0

    def search(self, parts: Sequence[LogPart], positions: dict[str, int], *, partial: bool) -> Iterator[_Match]:
        """Yield the lines that match; update the positions, as `LogSource.lines` does."""
        latest = [self._search_last(part, partial) for part in parts if part.last is not None]
        for log, line in _merge(part.tagged_lines(partial=partial) for part in parts if part.last is None):
            positions[log] = line.next_offset
            match, is_hidden = self._check(self._levels, log, line)
            self.hidden += is_hidden
            if match is not None:
                yield match
        for _, end in latest:
            if end is not None:
                positions.update(end)
        yield from heapq.merge(*(matches for matches, _ in latest), key=lambda match: match[1].time)

    def _search_last(self, part: LogPart, partial: bool) -> tuple[list[_Match], dict[str, int] | None]:
        """Return the last lines of a part that match, and the position after it; search no more than is needed."""
        last = part.last or 0
        count = last + _CONTEXT_LINES
        while True:
            count *= 4
            first = asyncio.run(part.reader.start_of_last(count, part.end, partial=partial))
            start = max(part.start, first)
            levels = LevelFilter(self._level or LogLevel.INFO)
            matches: deque[_Match] = deque(maxlen=last)
            found, hidden, end = 0, 0, None
            hidden_before: deque[int] = deque(maxlen=last)  # how many entries were hidden before each of the matches
            for log, line in replace(part, start=start).tagged_lines(partial=partial):
                end = {log: line.next_offset}
                match, is_hidden = self._check(levels, log, line)
                hidden += is_hidden
                if match is not None:
                    found += 1
                    matches.append(match)
                    hidden_before.append(hidden)
            # The window may begin within an entry that is hidden, whose lines are unknown then.
            if start == part.start or found >= last + _CONTEXT_LINES:
                break
        # Of a log that has more lines than are sent, those that are hidden between them count.
        self.hidden += hidden - (hidden_before[0] if found > last and hidden_before else 0)
        return list(matches), end

    def _check(self, levels: LevelFilter, log: str, line: Line) -> tuple[_Match | None, bool]:
        """Return a line if it matches, and whether it is the first one of a hidden entry that would match."""
        text = line.text.decode(errors="replace")
        visibility = Visibility.SHOWN if self._level is None else levels.check((log, line.member), text)
        if self._expressions and not any(expression.search(text) for expression in self._expressions):
            return None, False
        is_shown = visibility is Visibility.SHOWN
        return (log, line, text) if is_shown else None, visibility is Visibility.HIDDEN
