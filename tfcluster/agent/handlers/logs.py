"""RPC handlers of `logs` and `events`: read and follow log files, and search them by regular expressions and levels.

The search is in a child process, which ends with the request: not in the agent, as a regular expression may never
end (`(a+)+b`), and not in the command, as most of a log would be sent in vain.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.agent.context import AgentContext
from tfcluster.agent.event_loop import ChangeNotifier, ChangeWaiter, Turn
from tfcluster.agent.logs.log_reader import READERS, LogReader, RawOutput, RotatedLog, TaskLog, last_up
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.core.log_levels import LevelFilter, LogLevel, Visibility
from tfcluster.core.runs import find_run, matching_runs
from tfcluster.core.text import compile_patterns
from tfcluster.core.topology import matching_tasks, unknown_log
from tfcluster.errors import ClusterError
from tfcluster.os.daemonize import detach
from tfcluster.paths import LOCAL_HOST
from tfcluster.processes.logs.rotating_log import Line
from tfcluster.processes.runs.run_plan import OUTPUT, OUTPUT_INDEX
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.logs import (
    AGENT_LOG,
    ClusterEvent,
    EventEvent,
    EventsRequest,
    LogEvent,
    LogLine,
    LogPositions,
    LogsRequest,
)
from tfcluster.protocol.codec import Decoder, Message, decode_line, encode
from tfcluster.protocol.serialization import decode

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

    def to_json(self) -> list[Any]:
        """Return the part for another process, see `from_json`."""
        reader = [type(self.reader).__name__, *map(str, self.reader.paths)]
        return [self.log, reader, self.start, self.end, self.last]

    @classmethod
    def from_json(cls, value: list[Any]) -> LogPart:
        """Return the part of which `to_json` has made a value."""
        log, (kind, *paths), start, end, last = value
        return cls(log, READERS[kind](*map(Path, paths)), start, end, last)


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
        self._child.send({"parts": [part.to_json() for part in parts], "partial": partial})
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
            parts = [LogPart.from_json(part) for part in request["parts"]]
            positions = {part.log: part.start for part in parts}
            for log, line, text in criteria.search(parts, positions, partial=request["partial"]):
                message = {"log": log, "time": line.time, "position": line.position, "text": text}
                agent.sendall(encode({**message, "next": line.next_offset, "member": line.member}))
            agent.sendall(encode({"positions": positions, "hidden": criteria.hidden}))
            criteria.hidden = 0


_Match = tuple[str, Line, str]  # with the key of the log, and the text


class _Criteria:
    """What lines have to be to be sent; raises ClusterError if a pattern is no regular expression."""

    def __init__(self, patterns: Sequence[str], level: LogLevel | None) -> None:
        self._expressions = compile_patterns(patterns)
        self._level = level
        self._levels = LevelFilter(level or LogLevel.INFO)
        self.hidden = 0  # how many entries match the patterns, but are below the level

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
        last = min(part.last or 0, sys.maxsize)  # the limit of a deque
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


Streams = dict[str, LogReader]
E = TypeVar("E")


class LogHandlers:
    """Handles the requests for logs and events.

    Each line is sent with the position after it, and the start position of each log is sent before the first line. With
    these positions a command whose agent died resumes at the next agent without losing or repeating a line. The agent's
    shutdown ends all streams that follow a log.
    """

    def __init__(self, context: AgentContext) -> None:
        self._state_dir = context.state_dir
        self._supervisor = context.supervisor
        self._watcher = context.runs.watcher
        self._quitting = context.quitting
        self._search_title = f"tfcluster: {context.cluster} log search"

    async def logs(self, request: LogsRequest) -> Response[LogEvent | LogPositions, Done]:
        """Send lines of the logs of tasks and runs; see `LogsRequest`."""
        tasks = request.tasks or self._latest_run()
        self._streams(tasks)  # raises an error at once if a name is unknown
        since = request.since
        logs_of_tasks = frozenset(self._task_names())
        started = last_up(self._state_dir.events) if since is None else None

        def streams() -> Streams:
            with suppress(ClusterError):  # a named task has been removed since
                return self._streams(tasks)
            return {}

        def since_of(log: str) -> float | None:
            return started if since is None and log in logs_of_tasks else since

        with open_source(self._search_title, request.grep, request.level) as source:
            async with aclosing(self._read(streams, request, source, _log_event, since_of)) as events:
                async for event in events:
                    yield event
        yield Reply(Done())

    async def events(self, request: EventsRequest) -> Response[EventEvent | LogPositions, Done]:
        """Send the cluster's events; see `EventsRequest`."""
        streams: Streams = {"": RotatedLog(self._state_dir.events)}
        read = self._read(lambda: streams, request, LogSource(), _event_event, lambda log: request.since)
        async with aclosing(read) as events:
            async for event in events:
                yield event
        yield Reply(Done())

    def _streams(self, requested: Sequence[str]) -> Streams:
        """Open the logs of tasks and runs, by short name or run id; of all tasks if none is requested."""
        state_dir, names = self._state_dir, self._task_names()
        streams: Streams = {}
        for patterns in [[name] for name in requested] or [[]]:
            if patterns == [AGENT_LOG]:
                streams |= self._agent_logs()
                continue
            try:
                for short in matching_tasks(patterns, names):
                    streams[short] = TaskLog(state_dir.log_of(short), state_dir.log_buffer_of(short))
            except ClusterError as error:
                run = self._find_run(patterns[0], error)
                streams[run] = RawOutput(state_dir.runs / run / OUTPUT, state_dir.runs / run / OUTPUT_INDEX)
        return streams

    def _task_names(self) -> list[str]:
        """Return the short names of the cluster's tasks on this host; if it is down, of those that have left a log."""
        topology = self._supervisor.topology
        return (
            [task.short for task in topology.on(self._supervisor.host)] if topology else self._state_dir.logged_tasks()
        )

    def _agent_logs(self) -> Streams:
        """Open the logs of the agent and of the forwarder, and what libraries in C have printed in their processes."""
        host, folder = self._supervisor.host, self._state_dir
        streams: Streams = {}
        for process, log, stderr in (
            ("agent", folder.agent_log, folder.agent_stderr),
            ("forwarder", folder.forwarder_log, folder.forwarder_stderr),
        ):
            name = process if host == LOCAL_HOST else f"{process} on {host}"
            streams[name] = RotatedLog(log)
            streams[f"{name}, stderr"] = RawOutput(stderr)
        return streams

    def _find_run(self, name: str, no_task: ClusterError) -> str:
        """Return the id of the run with an id, a name or a unique prefix of the id, which is no task's name.

        Raises ClusterError: no run matches, or several do.
        """
        runs = RunStore(self._state_dir.runs).names()
        if not runs:
            raise no_task
        if not matching_runs(name, runs):
            raise unknown_log(name, no_task.hint if self._task_names() else "")
        return find_run(name, runs)

    def _latest_run(self) -> tuple[str, ...]:
        """Return the id of the latest run if the cluster has no servers, as that of a launch; else nothing."""
        topology = self._supervisor.topology
        if topology.has_servers if topology else self._state_dir.logged_tasks():
            return ()
        return tuple(record.run for record in RunStore(self._state_dir.runs).read_all()[-1:])

    async def _read(
        self,
        streams: Callable[[], Streams],
        request: LogsRequest | EventsRequest,
        source: LogSource,
        to_event: Callable[[str, Line], E],
        since_of: Callable[[str], float | None],
    ) -> AsyncGenerator[E | LogPositions, None]:
        """Read logs and optionally follow them, including logs that are created later.

        The start positions are yielded first, then the lines in the order of their times.

        Args:
            streams: Returns the logs, by key; `to_event` makes an event of a key and a line.
            since_of: Returns the Unix time of the first line to read of a log, by its key; None for all.
        """
        follow, readers, after, turn = request.follow, streams(), request.after, Turn()
        ends, positions = {}, {}
        for key, reader in readers.items():
            ends[key] = await _end(reader, request.until)
            positions[key] = after[key] if key in after else await _start(reader, ends[key], request, since_of(key))
            await turn.pause()
        # The last lines of a log that match are found by a search of all of it.
        tails = dict.fromkeys(readers.keys() - after.keys(), request.lines if _is_search(request) else None)
        yield LogPositions({key: position for key, position in positions.items() if tails.get(key) is None})
        begun = time.time()
        with self._watch(readers.values() if follow else ()) as wait:
            while True:
                if follow:
                    readers = {**readers, **streams()}
                    for key in readers.keys() - positions.keys():
                        positions[key] = await readers[key].start_since(begun)
                    ends = {key: reader.end() for key, reader in readers.items()}
                is_last = self._quitting.is_set()  # read the flag before the logs, so that no line is missed
                parts = [
                    LogPart(key, reader, positions[key], ends[key], tails.pop(key, None))
                    for key, reader in readers.items()
                ]
                before = dict(positions)
                async with aclosing(source.lines(parts, positions, partial=not follow)) as lines:
                    async for key, line in lines:
                        yield to_event(key, line)
                if hidden := source.take_hidden():
                    yield LogPositions(dict(positions), hidden)
                is_quiet = positions == before
                if not follow or (is_quiet and is_last):
                    return
                if is_quiet:
                    await wait()

    @contextmanager
    def _watch(self, readers: Iterable[LogReader]) -> Iterator[Callable[[], Awaitable[None]]]:
        """Yield a function that waits until there may be new lines in logs, or the agent shuts down."""
        changed = ChangeNotifier()
        folders = {self._state_dir.logs}.union(*(reader.folders for reader in readers))
        quitting = asyncio.ensure_future(self._quitting.wait())
        quitting.add_done_callback(lambda _: changed.notify())
        with ExitStack() as stack:
            stack.callback(quitting.cancel)
            are_watched = [stack.enter_context(self._watcher.watch(folder, changed.notify)) for folder in folders]
            # A watched folder may be deleted and made again.
            poll_interval = settings.LOG_CHECK_SECONDS if all(are_watched) else settings.LOG_FOLLOW_SECONDS
            yield ChangeWaiter(changed, settings.LOG_FOLLOW_SECONDS, poll_interval).wait


def _is_search(request: LogsRequest | EventsRequest) -> bool:
    return isinstance(request, LogsRequest) and bool(request.grep or request.level)


async def _start(reader: LogReader, end: int, request: LogsRequest | EventsRequest, since: float | None) -> int:
    start = 0 if since is None else await reader.start_since(since)
    if request.lines is None or (request.lines and _is_search(request)):
        return start
    return max(start, await reader.start_of_last(request.lines, end, partial=not request.follow))


async def _end(reader: LogReader, until: float | None) -> int:
    return reader.end() if until is None or until >= time.time() else await reader.end_until(until)


def _log_event(task: str, line: Line) -> LogEvent:
    text = line.text.decode(errors="replace")
    return LogEvent(task, line.next_offset, LogLine(task, line.time, text, line.member))


def _event_event(log: str, line: Line) -> EventEvent:
    return EventEvent(log, line.next_offset, decode(ClusterEvent, json.loads(line.text), lenient=True))
