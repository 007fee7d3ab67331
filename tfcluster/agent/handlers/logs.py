"""RPC handlers of `logs` and `events`: read and follow log files."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import TypeVar

from tfcluster import settings
from tfcluster.agent.change_notifier import ChangeNotifier, ChangeWaiter
from tfcluster.agent.context import AgentContext
from tfcluster.agent.logs.log_filter import LogPart, LogSource, open_source
from tfcluster.agent.logs.log_reader import LogReader, last_up
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.turns import Turn
from tfcluster.core.topology import matching_tasks
from tfcluster.errors import ClusterError
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
from tfcluster.protocol.serialization import decode

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
        tasks = request.tasks
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
        streams = {"": LogReader(self._state_dir.events)}
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
                    streams[short] = LogReader(state_dir.log_of(short), state_dir.log_buffer_of(short))
            except ClusterError:
                run = self._find_run(patterns[0])
                if run is None:
                    raise
                streams[run] = LogReader(None, state_dir.runs / run / OUTPUT, state_dir.runs / run / OUTPUT_INDEX)
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
            streams[name] = LogReader(log)
            streams[f"{name}, stderr"] = LogReader(None, stderr)
        return streams

    def _find_run(self, prefix: str) -> str | None:
        """Return the id of the run with an id or a unique prefix of it; None if there is no such run."""
        with suppress(ClusterError):
            return RunStore(self._state_dir.runs).find(prefix)
        return None

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
