"""The view of the cluster as the page gets it: made once for each change, however many pages are open."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.live.run_history import RunHistories
from tfcluster.client.live.view import LiveRun, LiveView
from tfcluster.core.event_kinds import event_kind
from tfcluster.core.programs import SCRIPT
from tfcluster.core.states import RunState
from tfcluster.core.status import ClusterStatus
from tfcluster.protocol.serialization import to_json
from tfcluster.ui.console import Text
from tfcluster.ui.listings import format_inputs, format_outcome
from tfcluster.ui.run_view import render_result
from tfcluster.ui.top.rows import describe_activity


@dataclass(frozen=True)
class Body:
    """JSON that is sent to a page, and the tag by which a page says that it has it."""

    data: bytes
    tag: str

    @classmethod
    def of(cls, value: Any) -> Body:
        """Return the body that has a value, which may be one already."""
        if isinstance(value, Body):
            return value
        data = json.dumps(value).encode()
        return cls(data, f'"{hashlib.blake2b(data, digest_size=8).hexdigest()}"')


class Feed:
    """Has the view of a cluster for pages; the hosts are asked, and what is used is measured, while a page is open."""

    def __init__(self, cluster: Cluster) -> None:
        self._live = LiveCluster(cluster)
        self.runs = RunHistories(lambda: self._live.cluster)
        self._lock = threading.Lock()  # of the following
        self._body: tuple[int, Body] | None = None  # with the version of the view
        self._outcomes: dict[str, str] = {}  # of the latest runs; empty for those that have not ended
        self._samples: deque[dict[str, Any]] = deque(maxlen=settings.LIVE_SAMPLES)

    def start(self) -> None:
        """Start following the cluster."""
        self._live.start()

    def close(self) -> None:
        """Stop following the cluster."""
        self._live.close()

    def wait(self, tag: str, timeout: float) -> Body | None:
        """Wait until there is another view than the one with a tag, and return it; None after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._live.look()
        self._live.wait_until_asked(settings.LIVE_POLL_SECONDS)  # else a page would begin with what was known long ago
        version = 0
        while time.monotonic() < deadline:
            version = self._live.wait(version, deadline - time.monotonic())
            if version and (body := self._make_body(version)).tag != tag:
                return body
        return None

    @property
    def cluster(self) -> Cluster:
        """The cluster, with the hosts that it has now."""
        return self._live.cluster

    def is_quiet(self, names: Sequence[str]) -> bool:
        """Return whether nothing is printed any more: the cluster is down, or all names are those of ended runs."""
        view = self._live.view()
        ended = {run.record.run for run in view.runs if not run.is_active}
        return view.down is not None or (bool(names) and ended.issuperset(names))

    def samples(self) -> list[dict[str, Any]]:
        """Return what the tasks have used lately, the oldest first."""
        with self._lock:
            return list(self._samples)

    def _make_body(self, version: int) -> Body:
        with self._lock:
            if self._body is None or self._body[0] != version:
                self._body = version, Body.of(self._describe(self._live.view()))
            return self._body[1]

    def _describe(self, view: LiveView) -> dict[str, Any]:
        """Return the view for the page, with what is wrong."""
        now = time.time()
        self._take_sample(view.status, now)
        status = to_json(view.status)
        problems = {host: link.reason for host, link in view.links.items() if link.lost_at is not None}
        if view.down is not None:
            problems = {"": view.down.message}
        elif len(problems) == len(view.links):
            status["state"] = "unreachable"
        runs = [self._describe_run(run) for run in view.runs[-settings.DASHBOARD_RUNS :]]
        self._outcomes = {run["run"]: run["outcome"] for run in runs}
        events = [{**event, "kind": event_kind(event["event"])} for event in view.events]
        measured = self._samples[-1]["time"] if self._samples else None
        return {
            "time": now,
            "measured": measured,
            "is_owner": True,
            "status": status,
            "problems": problems,
            "runs": runs,
            "events": events,
        }

    def _take_sample(self, status: ClusterStatus, now: float) -> None:
        """Keep what the tasks use, once in each interval in which it is measured."""
        is_known = any(host.load is not None for host in status.hosts)  # measured since somebody looks
        if is_known and (not self._samples or now - self._samples[-1]["time"] >= settings.LIVE_USAGE_SECONDS * 0.8):
            tasks = {task.task: (task.cpu_percent, task.rss_bytes) for task in status.tasks}
            self._samples.append({"time": now, "tasks": tasks})

    def _describe_run(self, run: LiveRun) -> dict[str, Any]:
        """Return the record of a run with its inputs and outcome in short, without its result, which may be large."""
        record = to_json(run.record)
        outcome = "" if run.is_active else self._outcomes.get(run.record.run) or describe_outcome(record)
        activity = {"progress": run.progress, "activity": describe_activity(run)} if run.is_active else {}
        return {
            **{"progress": None, "activity": ""},
            **add_inputs(record),
            **{"result": None, "origin": None, "outcome": outcome, "metrics": latest_metrics(run)},
            **activity,
        }


def latest_metrics(run: LiveRun) -> dict[str, Any]:
    """Return the latest value of each metric that a run has reported; None for one that is not finite.

    Those of a bundled program that has ended are the numbers of its result.
    """
    if run.is_active:
        return dict(run.metrics)
    result = run.record.result or {}
    if run.record.program != SCRIPT:
        known = run.record.parameters
        return {name: value for name, value in result.items() if isinstance(value, int | float) and name not in known}
    metrics = result.get("metrics") or {}
    flat = {name: value for name, value in metrics.items() if not isinstance(value, dict)}
    of_reporters = [value for value in metrics.values() if isinstance(value, dict)]
    return {**{name: value for each in of_reporters for name, value in each.items()}, **flat}


def describe_outcome(record: dict[str, Any]) -> str:
    """Describe a run that has ended: `pi = 3.1416 ± 0.0005`, a script's last metrics, or the error's first line."""
    if record["error"] is not None or record["program"] == SCRIPT or not record["result"]:
        return format_outcome(record)
    first = next(iter(render_result(record)), "")
    return str(first) if isinstance(first, (str, Text)) else format_outcome(record)


def add_inputs(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a run with its `inputs` in short, and the seconds that it `waited` before its program began.

    They are None for a run whose program has not succeeded: its `seconds` are all that it took.
    """
    is_over = record["state"] == RunState.SUCCEEDED and record["ended"] is not None
    waited = max(0.0, record["ended"] - record["started"] - record["seconds"]) if is_over else None
    return {**record, "inputs": format_inputs(record), "waited": waited}
