"""The calls that read what was written: logs and events."""

from __future__ import annotations

import asyncio
import heapq
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress

from tfcluster.agent.logs.log_reader import LogReader
from tfcluster.agent.runs.run_store import RunStore
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.topology import matching_tasks
from tfcluster.errors import ClusterError
from tfcluster.processes.logs.rotating_log import Line
from tfcluster.processes.run_driver import OUTPUT
from tfcluster.protocol.api import event, reply
from tfcluster.protocol.codec import Message

_POLL_SECONDS = 0.05
# So many lines are read before others get their turn.
_AT_ONCE = 256

Streams = dict[str, LogReader]


class LogHandlers:
    """Answers the calls about logs and events.

    Each line goes with the position behind it, and before the first one goes where each log is begun: with these, a
    command whose agent died goes on at the next agent without a lost or doubled line.

    Args:
        folder: The cluster's state folder.
        supervisor: Knows the tasks of the cluster that is up.
        quitting: Set when the agent ends; nothing is followed beyond that.
    """

    def __init__(self, folder: StateDir, supervisor: Supervisor, quitting: asyncio.Event) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._quitting = quitting

    async def logs(
        self, tasks: list[str], lines: int | None, since: float | None, follow: bool, after: dict[str, int]
    ) -> AsyncIterator[Message]:
        """Lines of tasks' logs, by their time."""
        self._streams(tasks)  # whatever is wrong with the names is told now

        def streams() -> Streams:
            with suppress(ClusterError):  # a task that was named is no longer
                return self._streams(tasks)
            return {}

        async for message in self._read(streams, lines, since, follow, after, _printed):
            yield message
        yield reply({})

    async def events(
        self, lines: int | None, since: float | None, follow: bool, after: dict[str, int]
    ) -> AsyncIterator[Message]:
        """What happened."""
        streams = {"": LogReader(self._folder.events)}
        async for message in self._read(lambda: streams, lines, since, follow, after, _happened):
            yield message
        yield reply({})

    def _streams(self, wanted: list[str]) -> Streams:
        """The logs of tasks by short name, of the cluster that is up, else of the one that was, and those of runs."""
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
                output = self._folder.runs / run / OUTPUT  # as it was printed; nobody moves it to numbered files
                found[run] = LogReader(output.with_suffix(".kept"), output)
        return found

    def _run(self, named: str) -> str | None:
        """The id of the run that is named by it or its beginning; None where there is none."""
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
        """The lines of logs: what there is, and then, to follow, those that come, also of logs that come.

        Args:
            streams: The logs, by key.
            lines: Only so many of the last ones of each; None for all.
            since: Only those that came at this Unix time or later; None for all.
            follow: Go on until the agent ends.
            after: Where to begin instead, by key, as an earlier answer told it.
            show: What is told of a line of a log.
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
            last = self._quitting.is_set()  # before the reading, so that nothing written since is missed
            quiet = True
            parts = [_tagged(key, each, places[key], ends[key], partial=not follow) for key, each in found.items()]
            async for key, line in _in_turn(heapq.merge(*parts, key=lambda tagged: tagged[1].time)):
                places[key], quiet = line.next, False
                yield event({"log": key, "next": line.next, "line": show(key, line)})
            if not follow or (quiet and last):
                return
            if quiet:
                await asyncio.sleep(_POLL_SECONDS)
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
    """Lines, with a pause now and then in which the agent does its other work."""
    for number, tagged in enumerate(lines, 1):
        yield tagged
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)


def _printed(task: str, line: Line) -> Message:
    return {"task": task, "time": line.time, "line": line.text.decode(errors="replace")}


def _happened(_: str, line: Line) -> Message:
    told: Message = json.loads(line.text)
    return told
