"""What the programs of runs report while they run, as far as views show it: read from the runs' files of events."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.agent.event_loop import Turn
from tfcluster.agent.runs.manager import RunManager
from tfcluster.core.run_events import LatestMetrics, is_report
from tfcluster.core.states import ENDED_RUN_STATES
from tfcluster.processes.runs.stored_output import missing_bytes
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.protocol.api.view import RunReport

Event = dict[str, Any]


def parse_events(lines: Iterable[bytes]) -> list[Event]:
    """Return the events on the given lines, without lines that are incomplete, as on a full disk."""
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return events


def read_latest_metrics(events: Path) -> dict[str, Any] | None:
    """Return what a script has reported so far, as its result will have it, from the last events in its file."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - settings.IO_BLOCK_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    metrics = LatestMetrics()
    for event in parse_events(lines):
        metrics.add(event)
    return metrics.as_result() or None


class ReportReader:
    """Reads what one run has reported, and each time only what is new."""

    def __init__(self, run: str, events: Path) -> None:
        self.report = RunReport(run)
        self.offset = 0
        self._events = events
        self._begun = b""  # a line whose end is not written yet

    def read_block(self) -> bool:
        """Update the report with the next block of the file; return whether there may be more."""
        try:
            with self._events.open("rb") as file:
                file.seek(self.offset)
                data = file.read(settings.IO_BLOCK_BYTES)
        except FileNotFoundError:
            return False
        self.offset += len(data)
        *lines, self._begun = (self._begun + data).split(b"\n")
        for event in parse_events(lines):
            with contextlib.suppress(KeyError, TypeError, ValueError):  # not an event of ours
                self._add(event)
        return len(data) == settings.IO_BLOCK_BYTES

    def _add(self, event: Event) -> None:
        kind = event["event"]
        if kind == "progress":
            progress = {name: event[name] for name in ("done", "total", "unit", "seconds")}
            self.report = replace(self.report, progress=progress)
        elif is_report(event):
            metrics = {**self.report.metrics, event["name"]: event["value"]}
            self.report = replace(self.report, metrics=metrics, step=int(event["step"]))
        elif kind in ("waiting", "waiting_ended"):
            self.report = replace(self.report, wait=event if kind == "waiting" else None)


class RunReports:
    """Keeps what views show of runs: the latest runs, and the reports of those that are active."""

    def __init__(self, runs: RunManager) -> None:
        self._runs = runs
        self._readers: dict[str, ReportReader] = {}
        self._ended: dict[str, RunSummary] = {}  # they do not change any more

    @property
    def version(self) -> str:
        """What differs if there is a new report."""
        return ",".join(f"{run} {reader.offset}" for run, reader in self._readers.items())

    async def refresh(self) -> tuple[RunReport, ...]:
        """Read what is new, and return the reports of the active runs."""
        turn = Turn()
        active = {run.id: run for run in self._runs.runs.values() if run.is_active and not run.record.is_part}
        self._readers = {
            name: self._readers.get(name) or ReportReader(name, run.events) for name, run in active.items()
        }
        for reader in list(self._readers.values()):
            while reader.read_block():
                await turn.pause()
        return tuple(reader.report for reader in self._readers.values())

    async def summaries(self) -> tuple[RunSummary, ...]:
        """Return the latest runs, the oldest first."""
        names, turn, found = self._runs.store.names(), Turn(), []
        self._ended = {name: self._ended[name] for name in names if name in self._ended}
        for name in names:
            if (summary := self._ended.get(name) or self._summarize(name)) is not None:
                found.append(summary)
            await turn.pause()
        return tuple(sorted(found, key=lambda summary: summary.started)[-settings.LIVE_RUNS :])

    def _summarize(self, name: str) -> RunSummary | None:
        known, store = self._runs.runs.get(name), self._runs.store
        record = known.snapshot() if known is not None else store.read(name)
        if record is None or record.is_part:
            return None
        summary = _shorten(record.summarize(missing_bytes(store.folder(name))))
        if record.state in ENDED_RUN_STATES:
            self._ended[name] = summary
        return summary


def _shorten(summary: RunSummary) -> RunSummary:
    """Return a run without its long values: a view has many runs in one message, and shows the beginning of each."""
    error, limit = summary.error, settings.LIVE_VALUE_MAX_CHARS
    if error is not None and len(str(error.get("message", ""))) > limit:
        error = {**error, "message": error["message"][:limit] + "…"}
    result = None if summary.result is None else _short_values(summary.result)
    origin = None if summary.origin is None else _short_values(summary.origin)  # a sweep has many trials
    return replace(summary, parameters=_short_values(summary.parameters), result=result, error=error, origin=origin)


def _short_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if len(json.dumps(value)) <= settings.LIVE_VALUE_MAX_CHARS}
