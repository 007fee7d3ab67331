"""The calls that read what was written: logs and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from tfcluster.agent.folder import StateFolder
from tfcluster.agent.logs import reading
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.model.layout import matching_tasks
from tfcluster.protocol.framing import Message
from tfcluster.protocol.messages import event, reply


class LogCalls:
    """Answers the calls about logs and events.

    Args:
        folder: The cluster's state folder.
        supervisor: Knows the tasks of the cluster that is up.
        quitting: Set when the agent ends; nothing is followed beyond that.
    """

    def __init__(self, folder: StateFolder, supervisor: Supervisor, quitting: asyncio.Event) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._quitting = quitting

    async def logs(self, tasks: list[str], lines: int | None, follow: bool) -> AsyncIterator[Message]:
        """Lines of tasks' logs."""
        async for short, line in self._lines(self._log_files(tasks), lines, follow):
            yield event({"task": short, "line": line})
        yield reply({})

    async def events(self, lines: int | None, follow: bool) -> AsyncIterator[Message]:
        """What happened."""
        async for _, line in self._lines({"": self._folder.events}, lines, follow):
            yield event(json.loads(line))
        yield reply({})

    async def _lines(
        self, paths: Mapping[str, Path], lines: int | None, follow: bool
    ) -> AsyncIterator[tuple[str, str]]:
        """Lines of files with their keys: the last of each, and then, to follow, those that come."""
        ends = {}
        for key, path in paths.items():
            start, ends[key] = reading.span(path, lines, partial=not follow)
            async for line in reading.lines_between(path, start, ends[key]):
                yield key, line
        if follow:
            async for key, line in reading.follow_all(paths, ends, until=self._quitting):
                yield key, line

    def _log_files(self, wanted: Sequence[str]) -> dict[str, Path]:
        """The log files of tasks by short name: of the cluster that is up, else of the one that was."""
        layout = self._supervisor.layout
        names = [task.short for task in layout.tasks] if layout else self._folder.logged_tasks()
        return {short: self._folder.log_of(short) for short in matching_tasks(wanted, names)}
