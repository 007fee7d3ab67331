"""Messages for pages, made from the cluster that is followed, however many pages are open."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.hosts import LiveRun, LiveView
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.live.run_history import RunHistory
from tfcluster.protocol.serialization import to_json
from tfcluster.ui.console import Text
from tfcluster.ui.listings import format_inputs, format_outcome
from tfcluster.ui.run_view import render_result
from tfcluster.ui.top.rows import describe_activity


def describe_outcome(record: dict[str, Any]) -> str:
    """Describe a run that has ended: `pi = 3.1416 ± 0.0005`, a script's last metrics, or the error's first line."""
    if record["error"] is not None or record["program"] == "script" or not record["result"]:
        return format_outcome(record)
    first = next(iter(render_result(record)), "")
    return str(first) if isinstance(first, (str, Text)) else format_outcome(record)


def add_inputs(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a run with its `inputs` in short."""
    return {**record, "inputs": format_inputs(record["program"], record["parameters"])}


Message = tuple[str, Any]


@dataclass
class Cursor:
    """What a page has received: versions of the status, of records and of runs, and how many samples and events."""

    status: int = 0
    records: int = 0
    samples: int = 0
    events: int = 0
    runs: dict[str, int] = field(default_factory=dict)


class Feed:
    """Tells pages what has changed in a cluster; what hosts and tasks use is measured while a page is open."""

    def __init__(self, cluster: Cluster) -> None:
        self._condition = threading.Condition()
        self._pages = 0
        self._outcomes: dict[str, str] = {}  # of the latest runs; empty for those that have not ended
        self._live = LiveCluster(cluster, None, self._notify)

    def start(self) -> None:
        """Start to follow the cluster."""
        self._live.start()

    def count_pages(self, more: int) -> None:
        """Note that a page was opened (1) or closed (-1)."""
        with self._condition:
            self._pages += more
            self._live.measure(self._pages > 0)

    def follow_run(self, run: str) -> RunHistory:
        """Follow a run, so that pages are told when it changes, and return what is known of it."""
        return self._live.runs.follow(run)

    def wait(self, cursor: Cursor, timeout: float) -> list[Message]:
        """Wait for news, and return the messages for the page, each with its kind; none after `timeout` seconds.

        The cursor says what the page has received; it is updated.
        """
        with self._condition:
            self._condition.wait_for(lambda: cursor != self._latest(), timeout)
        time.sleep(settings.DASHBOARD_MESSAGE_SECONDS)  # what happens at the same time becomes one message
        latest = self._latest()
        messages = self._messages(cursor, latest)
        cursor.__dict__.update(latest.__dict__)
        return messages

    def _latest(self) -> Cursor:
        status, samples = self._live.hosts.counts()
        runs = self._live.runs
        return Cursor(status, runs.version, samples, self._live.events.count, runs.versions())

    def _messages(self, before: Cursor, latest: Cursor) -> list[Message]:
        messages: list[Message] = []
        if latest.status and (before.status, before.records) != (latest.status, latest.records):
            messages.append(("state", self._state(self._live.view())))
        if before.samples != latest.samples:
            samples = self._live.hosts.samples_between(before.samples, latest.samples)
            messages.append(("samples", to_json(samples)))
        if before.events != latest.events:
            messages.append(("events", self._live.events.between(before.events, latest.events)))
        if changed := [run for run, version in latest.runs.items() if before.runs.get(run) != version]:
            messages.append(("runs", {"changed": changed, "progress": _progress(self._live.view())}))
        return messages

    def _state(self, view: LiveView) -> dict[str, Any]:
        """Return the status for the page, with what is wrong, and the records of the runs."""
        status = to_json(view.status)
        problems = {host: link.reason for host, link in view.links.items() if link.lost_at is not None}
        if view.down is not None:
            problems = {"": view.down.message}
        elif len(problems) == len(view.links):
            status["state"] = "unreachable"
        runs = [self._summarize(run) for run in view.runs[-settings.DASHBOARD_RUNS :]]
        self._outcomes = {run["run"]: run["outcome"] for run in runs}
        return {"status": status, "problems": problems, "runs": runs, "time": time.time()}

    def _summarize(self, run: LiveRun) -> dict[str, Any]:
        """Return the record of a run with its outcome in a line, without its result, which may be large."""
        record = to_json(run.record)
        outcome = "" if run.is_active else self._outcomes.get(run.record.run) or describe_outcome(record)
        return {**record, "result": None, "origin": None, "outcome": outcome}

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()


def _progress(view: LiveView) -> dict[str, Any]:
    """Return how far each active run is: its latest event `progress`, and its latest metrics or what it waits for."""
    return {
        run.record.run: {"progress": run.progress, "text": describe_activity(run)} for run in view.runs if run.is_active
    }
