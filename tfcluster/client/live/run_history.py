"""The events of runs that the page shows: progress, curves, notes, members, the graph of a placed run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import silent_context
from tfcluster.client.runs.locate import locate_run
from tfcluster.client.runs.requests import RunResponse, read_records
from tfcluster.client.runs.wait_diagnosis import ask_hosts
from tfcluster.core.run_events import is_report, reporter_of, trial_metric
from tfcluster.core.text import strip_forwarding
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.runs import AttachRequest

Event = dict[str, Any]
#: A point of a curve: the step, the value (None for one that is not finite), and the seconds since the run began.
Point = tuple[int, float | None, float | None]
_OF_TRIAL = ("trial", "parameters", "state", "metrics", "host", "seconds")  # as the result of a sweep has them


@dataclass
class Series:
    """The points of a curve, of which every second one is dropped when there are too many."""

    name: str
    reporter: str  # empty for a run of one process
    points: list[Point] = field(default_factory=list)
    _stride: int = 1
    _count: int = 0
    _latest: Point | None = None

    def add(self, point: Point) -> None:
        """Add a point."""
        self._latest = point
        if self._count % self._stride == 0:
            self.points.append(point)
        self._count += 1
        if len(self.points) > 2 * settings.METRIC_POINTS:
            self.points = self.points[::2]
            self._stride *= 2

    def to_json(self) -> dict[str, Any]:
        """Return the series for the page; its last point is the latest one."""
        latest = [] if self._latest is None or self.points[-1:] == [self._latest] else [self._latest]
        return {"name": self.name, "reporter": self.reporter, "points": [*self.points, *latest]}


class RunHistory:
    """Collects what the events of a run say. Thread-safe: it is read while events are added.

    Attributes:
        version: The number of events.
        progress: The latest event `progress` (`done`, `total`, `unit`, `seconds`); None if there was none.
        result: The result event; None while the run has none.
        operations: The operations of its graphs, each as [name, type, inputs].
        placements: Where they are placed, each as (name, type, device).
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.version = 0
        self.progress: Event | None = None
        self.result: Event | None = None
        self.operations: list[Any] = []
        self.placements: list[tuple[str, str, str]] = []
        self._series: dict[tuple[str, str], Series] = {}
        self._notes: list[str] = []
        self._members: dict[str, Event] = {}
        self._trials: dict[str, Event] = {}  # of a sweep, by their names
        self._lock = threading.Lock()

    def update(self, event: Event) -> None:
        """Add an event of the run."""
        with self._lock:
            self.version += 1
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a host may send what is no such event
                self._update(event["event"], event)

    def _update(self, kind: str, event: Event) -> None:
        if kind == "progress":
            self.progress = {name: event[name] for name in ("done", "total", "unit", "seconds")}
        elif is_report(event):
            name, reporter = event["name"], reporter_of(event)
            point = (int(event["step"]), event["value"], event.get("seconds"))
            self._series.setdefault((name, reporter), Series(name, reporter)).add(point)
            if trial := self._trials.get(event.get("task", "")):
                trial["metrics"][trial_metric(event)] = event["value"]
        elif kind == "graph":
            self.operations += event["operations"]
        elif kind == "placement":
            self.placements.append((event["op"], event["type"], event["device"]))
        elif kind == "member":
            self._members[event["task"]] = event
        elif kind == "trial":
            trial = {name: event[name] for name in _OF_TRIAL}
            self._trials[f"trial:{event['trial']}"] = {**trial, "metrics": dict(event["metrics"])}
        elif kind == "result":
            self.result = event
            if trials := (event.get("result") or {}).get("trials"):  # in their order
                self._trials = {f"trial:{each['trial']}": each for each in trials}
        self._notes += [note for note in _notes_of(event) if note not in self._notes]

    def to_json(self) -> dict[str, Any]:
        """Return what is known, for the page."""
        with self._lock:
            return {
                "run": self.run,
                "progress": self.progress,
                "series": [series.to_json() for series in self._series.values()],
                "notes": list(self._notes),
                "members": list(self._members.values()),
                "trials": list(self._trials.values()),
                "result": self.result,
                "has_graph": bool(self.operations),
                "is_complete": self.result is not None,
            }


class RunHistories:
    """Keeps the histories of the latest runs that were asked for. Thread-safe.

    `cluster` returns the cluster as it is now.
    """

    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._histories: dict[str, RunHistory] = {}
        self._followed: set[str] = set()
        self._read_at: dict[str, float] = {}  # when the latest attempt began, in monotonic seconds

    def follow(self, run: str) -> RunHistory:
        """Read the events of a run up to its result, in another thread, unless that is done already.

        Return the history at once; if it is a new one, after the first moment, in which a short history is read whole.
        """
        with self._lock:
            history = self._histories.pop(run, None) or RunHistory(run)
            self._histories[run] = history  # the last one that is dropped
            now = time.monotonic()
            is_due = now - self._read_at.get(run, -settings.LIVE_RETRY_SECONDS) >= settings.LIVE_RETRY_SECONDS
            is_new = run not in self._followed and history.result is None and is_due
            if is_new:
                self._followed.add(run)
                self._read_at[run] = now
            for other in list(self._histories)[: -settings.LIVE_HISTORIES]:
                if other not in self._followed:
                    del self._histories[other]
                    del self._read_at[other]
        if is_new:
            reader = threading.Thread(target=self._read, args=(history,), daemon=True)
            reader.start()
            reader.join(settings.LIVE_HISTORY_SECONDS)
        return history

    def _read(self, history: RunHistory) -> None:
        """Read the events of a run; if that fails, a later request tries again."""
        try:
            with contextlib.suppress(ClusterError):
                leader, run = locate_run(self._cluster(), history.run, start=True)
                for event in _read_events(leader, run, history.version):
                    history.update(event)
        finally:
            with self._lock:
                self._followed.discard(history.run)


def _read_events(leader: Cluster, run: str, received: int) -> Iterator[Event]:
    """Yield the events of a run up to its result, but not its output; the first `received` ones are left out.

    The run may have ended, and the cluster may be down. The host that is the head of `leader` leads the run.
    """
    client = leader.connect_head()

    def attach() -> RunResponse:
        return client.stream(AttachRequest(run, received, None, cancel_on_disconnect=False), start=True)

    for record in read_records(client, silent_context(leader.head), attach):
        received += 1
        if record["event"] == "waiting" and len(leader.hosts) > 1:
            record = ask_hosts(leader, record)
        yield record


def _notes_of(event: Event) -> Iterator[str]:
    """Yield what an event has to say to the user, besides its data."""
    if event["event"] in ("run", "result"):
        yield from event.get("notes", [])
    elif event["event"] == "task_down":
        yield event["problem"]
    elif event["event"] == "restart":
        yield f"{strip_forwarding(event['problem']).partition(chr(10))[0]}: restarted ({event['left']} more left)"
    elif event["event"] == "waiting":
        yield event["message"]
