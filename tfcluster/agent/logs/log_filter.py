"""Read parts of logs, and search them for regular expressions in a child process.

The search is not in the agent itself, as a regular expression may take for ever (`(a+)+b`), and not in the command, as
most of a log would be sent in vain. The child process ends with the request.
"""

from __future__ import annotations

import heapq
import itertools
import os
import re
import socket
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tfcluster.agent import subprocesses
from tfcluster.agent.logs.log_reader import LogReader
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.turns import Turn
from tfcluster.core.text import compile_patterns
from tfcluster.errors import ClusterError
from tfcluster.os.daemonize import detach
from tfcluster.processes.logs.rotating_log import Line
from tfcluster.protocol.codec import Decoder, Message, decode_line, encode
from tfcluster.protocol.serialization import decode, to_json


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
    """Searches parts of logs for the lines that at least one of some patterns matches, in a child process."""

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
def open_source(title: str, patterns: Sequence[str]) -> Iterator[LogSource]:
    """Open a source of the lines that match one of some regular expressions, or of all lines if there are none.

    Only a search has a child process, with the given title; for OSError see `fork_child`.
    """
    if not patterns:
        yield LogSource()
        return
    child = subprocesses.fork_child(partial(_run, title, os.getpid(), patterns), lambda status: None)
    try:
        yield LogSearch(child)
    finally:
        child.kill()
        child.close_pipe()


def _merge(logs: Iterable[Iterator[tuple[str, Line]]]) -> Iterator[tuple[str, Line]]:
    return heapq.merge(*logs, key=lambda tagged: tagged[1].time)


def _run(title: str, agent_pid: int, patterns: Sequence[str], agent: socket.socket) -> None:
    """Search, in the child process, each group of parts that the agent sends."""
    detach(title, keep=[agent.fileno()], parent=agent_pid)
    try:
        expressions = compile_patterns(patterns)
    except ClusterError as error:
        agent.sendall(encode({"error": error.to_json()}))
        agent.recv(1)  # the agent kills this process when it has read the error
        return
    with agent.makefile("rb") as requests:
        for request in map(decode_line, requests):
            parts = decode(list[LogPart], request["parts"])
            positions = {part.log: part.start for part in parts}
            for log, line, text in _matching(parts, expressions, positions, partial=request["partial"]):
                message = {"log": log, "time": line.time, "position": line.position, "text": text}
                agent.sendall(encode({**message, "next": line.next_offset, "member": line.member}))
            agent.sendall(encode({"positions": positions}))


def _matching(
    parts: Sequence[LogPart], expressions: Sequence[re.Pattern[str]], positions: dict[str, int], *, partial: bool
) -> Iterator[tuple[str, Line, str]]:
    """Yield the lines that match with the keys of their logs and their texts; update the positions, as `lines` does."""
    latest = {part.log: deque[tuple[str, Line, str]](maxlen=part.last) for part in parts if part.last is not None}
    for log, line in _merge(part.tagged_lines(partial=partial) for part in parts):
        positions[log] = line.next_offset
        text = line.text.decode(errors="replace")
        if not any(expression.search(text) for expression in expressions):
            continue
        if log in latest:
            latest[log].append((log, line, text))
        else:
            yield log, line, text
    yield from heapq.merge(*latest.values(), key=lambda match: match[1].time)
