"""Streams a run's events and output while they are written, from the first event to the result (like `tail -f`)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.agent.change_notifier import ChangeWaiter
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.runs.outcome import result_event
from tfcluster.core.run_events import LatestMetrics, OutputEvent, to_record
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.os.sparse_files import first_data
from tfcluster.processes.runs.run_plan import EVENTS, OUTPUT, OUTPUT_INDEX
from tfcluster.processes.runs.stored_output import OutputHold, OutputPart, missing_text
from tfcluster.processes.runs.streams import STDERR
from tfcluster.protocol.codec import Message

# The events that no output is yielded before, as far as both are known: `run` is written before a driver can print.
_FIRST = ("run", "task_down")


async def follow(
    runs: RunManager, run_id: str, *, output: int | None = 0, is_owner: bool = False
) -> AsyncGenerator[Message, None]:
    """Stream a run's events from the first one to its result, also for a run that has ended.

    Args:
        output: The position in what a script prints from which on to read it; None to leave it out.
        is_owner: Whether the script waits if it is not read as fast as it prints; only for one reader at a time.

    Raises:
        ClusterError: There is no record of the run.
    """
    run, record = runs.runs.get(run_id), runs.record(run_id)
    folder = runs.store.folder(run_id)
    has_result = False

    def is_active() -> bool:
        return run is not None and run.is_active

    with contextlib.ExitStack() as stack:
        parts = Output(folder, output) if record.options.traits.is_script and output is not None else None
        if parts is not None and is_owner and run is not None and run.is_active:
            parts.hold = run.hold_output(parts.position)
            stack.callback(parts.release)
        wait: Callable[[], Awaitable[None]] = _no_wait
        if run is not None and run.is_active:
            is_watched = stack.enter_context(runs.watcher.watch(folder, run.changed.notify))
            poll_interval = None if is_watched else settings.RUN_POLL_SECONDS
            wait = ChangeWaiter(run.changed, settings.RUN_READ_INTERVAL_SECONDS, poll_interval).wait
        async for event in stream_files(folder / EVENTS, parts, is_active, wait):
            has_result = event["event"] == "result"
            yield event
    record = record if run is None else run.record
    if not has_result and record.state not in ACTIVE_RUN_STATES:  # the disk was full when it was written
        yield to_record(result_event(record))


async def wait_for_result(runs: RunManager, run_id: str) -> AsyncGenerator[Message, None]:
    """Yield a run's id at once, and its result when it has ended, without reading what it prints meanwhile."""
    yield {"event": "run", "run": run_id}
    run = runs.runs.get(run_id)
    while run is not None and run.is_active:
        await run.changed.wait_for_change(run.changed.count)
    yield to_record(result_event(runs.record(run_id)))


async def _no_wait() -> None:
    """Return at once: nothing more is written for a run that has ended."""


class _Lines:
    """Reads the lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read_block(self) -> tuple[list[tuple[int, bytes]], bool]:
        """Return the lines that the next block of the file completes, with their offsets, and whether it was empty."""
        data = b""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb", buffering=0) as file:
            if (stored := first_data(file.fileno(), self._offset)) > self._offset:
                self._offset, self._rest = stored, b""
            data = os.pread(file.fileno(), settings.IO_BLOCK_BYTES, self._offset)
        start = self._offset - len(self._rest)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        starts = itertools.accumulate((len(line) + 1 for line in lines), initial=start)
        return list(zip(starts, lines, strict=False)), not data


class Output:
    """Reads the stored output of a run, part by part; see `tfcluster.processes.runs.stored_output`.

    Attributes:
        position: The position in the whole output from which on to read next.
        hold: Keeps what was not read yet; None if nothing waits for this reader.
    """

    def __init__(self, folder: Path, position: int = 0) -> None:
        self._path, self._index_path = folder / OUTPUT, folder / OUTPUT_INDEX
        self._index = _Lines(self._index_path)
        self.position = position
        self.hold: OutputHold | None = None

    def release(self) -> None:
        """Give up the hold, if there is one."""
        if self.hold is not None:
            self.hold.close()

    async def read_events(self) -> AsyncIterator[Message]:
        """Yield an event for each part that has been written. Other asyncio tasks get to run after each block."""
        is_quiet = False
        while not is_quiet:
            lines, is_quiet = self._index.read_block()
            parts = [part for at, line in lines if (part := OutputPart.parse(line, at)) is not None]
            with contextlib.suppress(FileNotFoundError):
                for event in self._read(part for part in parts if part.offset >= self.position):
                    yield event
            await asyncio.sleep(0)

    def read_missing_end(self) -> Iterator[Message]:
        """Yield an event if the end of the output is not stored; call this when all that is stored has been read."""
        with contextlib.suppress(FileNotFoundError):
            yield from self._skip_to(self._path.stat().st_size)

    def _read(self, parts: Iterable[OutputPart]) -> Iterator[Message]:
        """Yield the events of parts, as far as these are still stored when they have been read."""
        with self._path.open("rb") as output, self._index_path.open("rb", buffering=0) as index:
            for batch in _batches(parts):
                contents = []
                for part in batch:
                    output.seek(part.offset)
                    contents.append(output.read(part.size))
                start = batch[0].at
                stored = os.pread(index.fileno(), batch[-1].at + len(batch[-1].line) - start, start)
                for part, content in zip(batch, contents, strict=True):
                    if stored.startswith(part.line, part.at - start):
                        yield from self._skip_to(part.offset)
                        data = content.decode(errors="surrogateescape")
                        yield to_record(OutputEvent(part.stream, data, task=part.task))
                        self.position = part.offset + part.size
                if self.hold is not None:
                    self.hold.move(self.position)

    def _skip_to(self, position: int) -> Iterator[Message]:
        if (missing := position - self.position) > 0:
            self.position = position
            yield to_record(OutputEvent(STDERR, f"{missing_text(missing)}\n", missing))


def _batches(parts: Iterable[OutputPart]) -> Iterator[list[OutputPart]]:
    """Yield groups of parts of some size: what is checked after it was read is checked together."""
    batch: list[OutputPart] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += part.size
        if size >= settings.IO_BLOCK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def stream_files(
    events: Path, output: Output | None, is_active: Callable[[], bool], wait: Callable[[], Awaitable[None]]
) -> AsyncIterator[Message]:
    """Stream a run's events and, optionally, its output.

    Output that was printed before an event is yielded before it, but for the events of `_FIRST`: that a task is down
    explains what TensorFlow prints about it. The result is yielded last, once the run has ended.

    `output` is None to leave the output out. `wait` waits until more may have been written.
    """
    event_lines = _Lines(events)
    result: Message | None = None
    while True:
        has_ended = not is_active()  # checked before reading, so that the last writes are not missed
        lines, is_quiet = event_lines.read_block()
        events_read = _events(line for _, line in lines)
        result = next((event for event in events_read if event["event"] == "result"), result)
        new_events = [event for event in events_read if event["event"] != "result"]
        while any(event["event"] in _FIRST for event in new_events):
            yield new_events.pop(0)
        if output is not None:
            async for part in output.read_events():
                yield part
        for event in new_events:
            yield event
        if is_quiet and has_ended:
            break
        if is_quiet:
            await wait()
    for part in output.read_missing_end() if output is not None else ():
        yield part
    if result is not None:
        yield result


def read_latest_metrics(events: Path) -> dict[str, Any] | None:
    """Return what a script has reported so far, as its result will have it, from the last events in its file."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - settings.IO_BLOCK_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    metrics = LatestMetrics()
    for event in _events(lines):
        metrics.add(event)
    return metrics.as_result() or None


async def skip(messages: AsyncIterator[Message], events: int) -> AsyncIterator[Message]:
    """Skip the first events of a stream, for a client that received them before its agent died; those of output stay.

    `events` is the number of events to skip; those of output do not count.
    """
    async for message in messages:
        if message["event"] == "output" or events <= 0:
            yield message
        else:
            events -= 1


def _events(lines: Iterable[bytes]) -> list[Message]:
    """Return the events on the given lines, without lines that are incomplete, as on a full disk."""
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events
