"""The state of a cluster as the page shows it, kept current by threads, however many pages are open."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import read_events
from tfcluster.client.runs import list_runs
from tfcluster.client.usage import take_snapshot_with_usage
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.core.status import ClusterStatus
from tfcluster.dashboard.runs import RunBook
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import WatchRequest
from tfcluster.protocol.serialization import to_json

Message = tuple[str, Any]


@dataclass
class Cursor:
    """What a page has received: the versions of the state and of the runs, and how many samples and events."""

    state: int = -1
    samples: int = 0
    events: int = 0
    runs: dict[str, int] = field(default_factory=dict)


class Feed:
    """Watches a cluster: an agent reports each change at once, and while a page is open, usage is asked for.

    Args:
        cluster: The cluster.

    Attributes:
        runs: What is known of the runs.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.runs = RunBook(cluster, self._notify)
        self._cluster = cluster
        self._condition = threading.Condition()
        self._wakeup = threading.Event()
        self._is_running = threading.Event()  # the cluster
        self._state: dict[str, Any] = {}
        self._version = -1
        self._samples: deque[dict[str, Any]] = deque(maxlen=settings.DASHBOARD_SAMPLES)
        self._sample_count = 0
        self._events: deque[dict[str, Any]] = deque(maxlen=settings.DASHBOARD_LINES)
        self._event_count = 0
        self._pages = 0
        self._run_states: Any = None
        self._records: list[dict[str, Any]] = []

    def start(self) -> None:
        """Start to watch the cluster."""
        for host in self._cluster.hosts:
            threading.Thread(target=self._watch, args=(host,), daemon=True).start()
        for target in (self._refresh, self._follow_events):
            threading.Thread(target=target, daemon=True).start()

    def open_page(self) -> None:
        """Note that a page is open, for which usage is asked for."""
        with self._condition:
            self._pages += 1
        self._wakeup.set()

    def close_page(self) -> None:
        """Note that a page was closed."""
        with self._condition:
            self._pages -= 1

    def wait(self, cursor: Cursor, timeout: float) -> list[Message]:
        """Wait for news.

        Args:
            cursor: What the page has received; it is updated.
            timeout: Seconds after which nothing is returned.

        Returns:
            The messages for the page, each with its kind.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._has_news(cursor), timeout)
        time.sleep(settings.DASHBOARD_MESSAGE_SECONDS)  # what happens at the same time becomes one message
        with self._condition:
            return list(self._take_news(cursor))

    def _has_news(self, cursor: Cursor) -> bool:
        is_behind = (cursor.state, cursor.samples, cursor.events) != (
            self._version,
            self._sample_count,
            self._event_count,
        )
        return is_behind or cursor.runs != self.runs.versions()

    def _take_news(self, cursor: Cursor) -> list[Message]:
        messages: list[Message] = []
        if cursor.state != self._version:
            cursor.state = self._version
            messages.append(("state", self._state))
        if count := min(self._sample_count - cursor.samples, len(self._samples)):
            cursor.samples = self._sample_count
            messages.append(("samples", list(self._samples)[-count:]))
        if count := min(self._event_count - cursor.events, len(self._events)):
            cursor.events = self._event_count
            messages.append(("events", list(self._events)[-count:]))
        versions = self.runs.versions()
        if changed := [run for run, version in versions.items() if cursor.runs.get(run) != version]:
            cursor.runs = versions
            messages.append(("runs", {"changed": changed, "progress": self.runs.progress()}))
        return messages

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _watch(self, host: str) -> None:
        """Have the agent of a host report each change, for as long as this process lives."""
        while True:
            try:
                for _ in self._cluster.connect(host).stream(WatchRequest(settings.DASHBOARD_WATCH_SECONDS)):
                    self._wakeup.set()
            except ClusterError:
                self._wakeup.set()
                time.sleep(settings.DASHBOARD_SAMPLE_SECONDS)

    def _refresh(self) -> None:
        """Take a snapshot after each change, and from time to time while a page is open."""
        while True:
            try:
                snapshot, _ = take_snapshot_with_usage(self._cluster, 2 * settings.DASHBOARD_SAMPLE_SECONDS)
            except ClusterError as error:
                self._take_failure(error)
            else:
                problems = {host: error.message for host, error in snapshot.errors.items()}
                self._take_status(snapshot.status, problems)
            with self._condition:
                has_pages = self._pages > 0
            self._wakeup.wait(settings.DASHBOARD_SAMPLE_SECONDS if has_pages else None)
            self._wakeup.clear()

    def _take_failure(self, error: ClusterError) -> None:
        self._is_running.clear()
        state = "stopped" if error.exit_code is ExitCode.NOT_RUNNING else "unreachable"
        self._list_runs(("failure", state))
        previous = self._state.get("status")
        status = {**(previous or {"cluster": self._cluster.name, "hosts": [], "tasks": [], "runs": []}), "state": state}
        self._set_state({"status": status, "problems": {"": error.message}, "runs": self._records})

    def _take_status(self, status: ClusterStatus, problems: dict[str, str]) -> None:
        self._is_running.set()
        self._list_runs(tuple((run.run, run.state) for run in status.runs))
        for run in status.runs:
            if run.state in ACTIVE_RUN_STATES:
                self.runs.follow(run.run)
        value = to_json(status)
        sample = {
            "time": time.time(),
            "tasks": {task["task"]: [task["cpu_percent"], task["rss_bytes"]] for task in value["tasks"]},
            "hosts": {host["host"]: host["load"] for host in value["hosts"]},
        }
        with self._condition:
            if not self._samples or sample["time"] - self._samples[-1]["time"] >= settings.DASHBOARD_SAMPLE_SECONDS / 2:
                self._samples.append(sample)
                self._sample_count += 1
        self._set_state({"status": value, "problems": problems, "runs": self._records})

    def _list_runs(self, states: Any) -> None:
        """Read the records of the runs, if their states have changed."""
        if states == self._run_states:
            return
        try:
            self._records, problem = list_runs(self._cluster, settings.DASHBOARD_RUNS)
        except ClusterError:
            return
        if problem is None:
            self._run_states = states

    def _set_state(self, state: dict[str, Any]) -> None:
        with self._condition:
            self._state = {**state, "time": time.time()}
            self._version += 1
            self._condition.notify_all()

    def _follow_events(self) -> None:
        since: float | None = None
        while True:
            try:
                lines = None if since is not None else settings.DASHBOARD_LINES
                follow = self._is_running.is_set()
                for event in read_events(self._cluster, lines=lines, since=since, follow=follow):
                    if event in self._events:  # read once more, after the link to a host was lost
                        continue
                    since = event["time"]
                    with self._condition:
                        self._events.append(event)
                        self._event_count += 1
                        self._condition.notify_all()
            except ClusterError:
                pass  # the state says what is wrong
            time.sleep(settings.DASHBOARD_SAMPLE_SECONDS)
            self._is_running.wait()
