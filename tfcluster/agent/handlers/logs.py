"""RPC handlers of `logs` and `events`: read and follow log files."""

from __future__ import annotations

import asyncio
import heapq
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress

from tfcluster import settings
from tfcluster.agent.logs.log_reader import LogReader
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.topology import matching_tasks
from tfcluster.errors import ClusterError
from tfcluster.processes.logs.rotating_log import Line
from tfcluster.processes.run_spec import OUTPUT
from tfcluster.protocol.api import event, reply
from tfcluster.protocol.codec import Message

Streams = dict[str, LogReader]


class LogHandlers:
    """Handles the requests for logs and events.

    Each line is sent with the position after it, and the start position of each log is sent before the first line. With
    these positions a command whose agent died resumes at the next agent without losing or repeating a line.

    Args:
        folder: The cluster's state directory.
        supervisor: Knows the tasks of the cluster that is up.
        quitting: Set when the agent shuts down; this ends all streams that follow a log.
    """

    def __init__(self, folder: StateDir, supervisor: Supervisor, quitting: asyncio.Event) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._quitting = quitting

    async def logs(
        self, tasks: list[str], lines: int | None, since: float | None, follow: bool, after: dict[str, int]
    ) -> AsyncIterator[Message]:
        """Yield lines of the logs of tasks and runs, merged by time.

        Args:
            tasks: The names of the tasks and runs; empty for all tasks on this host.
            lines: As in `_read`.
            since: As in `_read`.
            follow: As in `_read`.
            after: As in `_read`.
        """
        self._streams(tasks)  # raises an error at once if a name is unknown

        def streams() -> Streams:
            with suppress(ClusterError):  # a named task has been removed since
                return self._streams(tasks)
            return {}

        async for message in self._read(streams, lines, since, follow, after, _printed):
            yield message
        yield reply({})

    async def events(
        self, lines: int | None, since: float | None, follow: bool, after: dict[str, int]
    ) -> AsyncIterator[Message]:
        """Yield the cluster's events.

        Args:
            lines: As in `_read`.
            since: As in `_read`.
            follow: As in `_read`.
            after: As in `_read`.
        """
        streams = {"": LogReader(self._folder.events)}
        async for message in self._read(lambda: streams, lines, since, follow, after, _happened):
            yield message
        yield reply({})

    def _streams(self, wanted: list[str]) -> Streams:
        """Open the logs of tasks and runs.

        The tasks are those of the cluster that is up, or if it is down, those that have left a log.

        Args:
            wanted: The names of the tasks and runs; empty for all tasks on this host.

        Returns:
            The logs, by the task's short name or the run's id.

        Raises:
            ClusterError: A name is neither that of a task nor that of a run.
        """
        topology = self._supervisor.topology
        names = [task.short for task in topology.on(self._supervisor.host)] if topology else self._folder.logged_tasks()
        found: Streams = {}
        for arguments in [[name] for name in wanted] or [[]]:
            try:
                shorts = matching_tasks(arguments, names)
                found |= {
                    short: LogReader(self._folder.log_of(short), self._folder.log_buffer_of(short)) for short in shorts
                }
            except ClusterError:
                run = self._run(arguments[0])
                if run is None:
                    raise
                output = self._folder.runs / run / OUTPUT  # raw output: it is not rotated
                found[run] = LogReader(output.with_suffix(".kept"), output)
        return found

    def _run(self, named: str) -> str | None:
        """Find a run.

        Args:
            named: The run's id or a unique prefix of it.

        Returns:
            The run's id; None if there is no such run.
        """
        with suppress(ClusterError):
            return RunStore(self._folder.runs).find(named)
        return None

    async def _read(
        self,
        streams: Callable[[], Streams],
        lines: int | None,
        since: float | None,
        follow: bool,
        after: dict[str, int],
        show: Callable[[str, Line], Message],
    ) -> AsyncIterator[Message]:
        """Read logs and optionally follow them, including logs that are created later.

        Args:
            streams: Returns the logs, by key.
            lines: How many of the last lines of each log to read; None for all.
            since: Read only lines that were written at or after this Unix time, in seconds; None for all.
            follow: Whether to wait for new lines until the agent shuts down.
            after: The start position of each log, by key, as given in an earlier response; it overrides `lines` and
                `since`.
            show: Formats a line of a log as a message; its arguments are the key of the log and the line.

        Yields:
            The start positions, then the lines in the order of their times.
        """
        found = streams()
        ends = {key: stream.end() for key, stream in found.items()}
        places = {
            key: after[key] if key in after else _start(stream, ends[key], lines, since, partial=not follow)
            for key, stream in found.items()
        }
        yield event({"after": dict(places)})
        begun = time.time()
        while True:
            last = self._quitting.is_set()  # read the flag before the logs, so that no line is missed
            quiet = True
            parts = [_tagged(key, each, places[key], ends[key], partial=not follow) for key, each in found.items()]
            async for key, line in _in_turn(heapq.merge(*parts, key=lambda tagged: tagged[1].time)):
                places[key], quiet = line.next_offset, False
                yield event({"log": key, "next": line.next_offset, "line": show(key, line)})
            if not follow or (quiet and last):
                return
            if quiet:
                await asyncio.sleep(settings.LOG_FOLLOW_SECONDS)
            found = {**found, **streams()}
            for key in found.keys() - places.keys():
                places[key] = found[key].start_since(begun)
            ends = {key: stream.end() for key, stream in found.items()}


def _start(stream: LogReader, end: int, lines: int | None, since: float | None, *, partial: bool) -> int:
    start = 0 if since is None else stream.start_since(since)
    return start if lines is None else max(start, stream.start_of_last(lines, end, partial=partial))


def _tagged(key: str, stream: LogReader, start: int, end: int, *, partial: bool) -> Iterator[tuple[str, Line]]:
    return ((key, line) for line in stream.lines(start, end, partial=partial))


async def _in_turn(lines: Iterable[tuple[str, Line]]) -> AsyncIterator[tuple[str, Line]]:
    """Yield lines, and regularly give control to the event loop for the agent's other work."""
    for number, tagged in enumerate(lines, 1):
        yield tagged
        if number % settings.LOG_LINES_PER_TURN == 0:
            await asyncio.sleep(0)


def _printed(task: str, line: Line) -> Message:
    return {"task": task, "time": line.time, "line": line.text.decode(errors="replace")}


def _happened(_: str, line: Line) -> Message:
    told: Message = json.loads(line.text)
    return told
