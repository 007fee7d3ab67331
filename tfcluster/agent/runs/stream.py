"""Streams a run's events and output while they are written, from the first event to the result (like `tail -f`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.change_notifier import ChangeWaiter
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.runs.outcome import result_event
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.errors import ClusterError
from tfcluster.processes.runs.run_spec import EVENTS, OUTPUT, OUTPUT_INDEX
from tfcluster.protocol.codec import Message


async def follow(runs: RunManager, run_id: str, *, with_output: bool = True) -> AsyncGenerator[Message, None]:
    """Stream a run's events from the first one to its result, also for a run that has ended.

    Args:
        runs: The runs of this agent.
        run_id: The run's id.
        with_output: Whether to read what a script prints.

    Yields:
        The events, as soon as they are written.

    Raises:
        ClusterError: There is no record of the run.
    """
    run = runs.runs.get(run_id)
    record = run.record if run is not None else runs.store.read(run_id)
    if record is None:
        raise ClusterError(f"no result recorded for {run_id}")
    folder = runs.store.folder(run_id)
    output = folder if record.traits.is_script and with_output else None
    has_result = False

    def is_active() -> bool:
        return run is not None and run.is_active

    with contextlib.ExitStack() as stack:
        wait: Callable[[], Awaitable[None]] = _no_wait
        if run is not None and run.is_active:
            is_watched = stack.enter_context(runs.watcher.watch(folder, run.changed.notify))
            poll_interval = None if is_watched else settings.RUN_POLL_SECONDS
            wait = ChangeWaiter(run.changed, settings.RUN_READ_INTERVAL_SECONDS, poll_interval).wait
        async for event in stream_files(folder / EVENTS, output, is_active, wait):
            has_result = event["event"] == "result"
            yield event
    record = record if run is None else run.record
    if not has_result and record.state not in ACTIVE_RUN_STATES:  # the disk was full when it was written
        yield result_event(record)


async def wait_for_result(runs: RunManager, run_id: str) -> AsyncGenerator[Message, None]:
    """Yield a run's id at once, and its result when it has ended, without reading what it prints meanwhile.

    Args:
        runs: The runs of this agent.
        run_id: The run's id.

    Raises:
        ClusterError: There is no record of the run.
    """
    yield {"event": "run", "run": run_id}
    run = runs.runs.get(run_id)
    while run is not None and run.is_active:
        await run.changed.wait_for_change(run.changed.count)
    record = run.record if run is not None else runs.store.read(run_id)
    if record is None:
        raise ClusterError(f"no result recorded for {run_id}")
    yield result_event(record)


async def _no_wait() -> None:
    """Return at once: nothing more is written for a run that has ended."""


class _Lines:
    """Reads the lines of a growing file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read_block(self) -> tuple[list[bytes], bool]:
        """Return the lines that the next block of the file completes, and whether there was nothing to read."""
        data = b""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(settings.IO_BLOCK_BYTES)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines, not data


class _Output:
    """Reads the output of a run, part by part; see `tfcluster.processes.runs.run_output`.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / OUTPUT
        self._index = _Lines(folder / OUTPUT_INDEX)

    async def read_events(self) -> AsyncIterator[Message]:
        """Yield an event for each part that has been written. Other asyncio tasks get to run after each block."""
        is_quiet = False
        while not is_quiet:
            lines, is_quiet = self._index.read_block()
            with contextlib.suppress(FileNotFoundError):
                for source, data in self._read_parts(lines):
                    yield {"event": "output", **source, "data": data.decode(errors="surrogateescape")}
            await asyncio.sleep(0)

    def _read_parts(self, lines: list[bytes]) -> Iterator[tuple[Message, bytes]]:
        if not lines:
            return
        with self._path.open("rb") as file:
            for line in lines:
                try:
                    stream, offset, size, *task = line.decode().split(" ")
                    file.seek(int(offset))
                    yield {"stream": stream, **({"task": task[0]} if task else {})}, file.read(int(size))
                except ValueError:  # a full disk has truncated the line
                    continue


async def stream_files(
    events: Path, output: Path | None, is_active: Callable[[], bool], wait: Callable[[], Awaitable[None]]
) -> AsyncIterator[Message]:
    """Stream a run's events and, optionally, its output.

    Output that was printed before an event is yielded before it. The result is yielded last, once the run has ended.

    Args:
        events: The file that holds the run's events.
        output: The run's folder, which holds its output; None to leave that out.
        is_active: Returns whether the run is active.
        wait: Waits until more may have been written.

    Yields:
        The events.
    """
    event_lines = _Lines(events)
    parts = None if output is None else _Output(output)
    result: Message | None = None
    while True:
        has_ended = not is_active()  # checked before reading, so that the last writes are not missed
        lines, is_quiet = event_lines.read_block()
        new_events = _events(lines)
        if new_events and new_events[0]["event"] == "run":  # written before any driver could print
            yield new_events.pop(0)
        if parts is not None:
            async for part in parts.read_events():
                yield part
        for event in new_events:
            if event["event"] == "result":
                result = event
            else:
                yield event
        if is_quiet and has_ended:
            break
        if is_quiet:
            await wait()
    if result is not None:
        yield result


async def skip(messages: AsyncIterator[Message], events: int, output: int) -> AsyncIterator[Message]:
    """Skip the first events of a stream, for a client that received them before its agent died.

    Args:
        messages: All events.
        events: Number of events to skip that are not output.
        output: Number of output events to skip.

    Yields:
        The remaining events.
    """
    to_skip = {True: output, False: events}
    async for message in messages:
        is_output = message["event"] == "output"
        if to_skip[is_output]:
            to_skip[is_output] -= 1
        else:
            yield message


def _events(lines: list[bytes]) -> list[Message]:
    """Return the events on the given lines, without lines that a full disk has truncated."""
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events
