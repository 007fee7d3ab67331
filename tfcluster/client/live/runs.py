"""The runs of a cluster that is followed: those that are active or looked at are followed up to their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.run_history import Event, RunHistory, read_run_events
from tfcluster.client.live.stream_threads import StreamThreads
from tfcluster.client.live.view import LiveRun
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.runs.leader import locate_run
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.core.status import RunStatus
from tfcluster.protocol.api.runs import RunSummary


class LiveRuns:
    """Keeps the records of runs, and the histories of the latest ones that were active or looked at. Thread-safe.

    `changed` is called from other threads after each change; `version` counts the changes of records.
    """

    def __init__(self, cluster: Callable[[], Cluster], threads: StreamThreads, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._threads = threads
        self._changed = changed
        self._lock = threading.Lock()
        self._records: dict[str, tuple[str, RunSummary]] = {}
        self._histories: dict[str, RunHistory] = {}
        self._followed: set[str] = set()
        self.version = 0

    def is_stale(self, host: str, runs: Iterable[RunStatus]) -> bool:
        """Return whether runs of a host have other states than its records."""
        with self._lock:
            known = {name: record.state for name, (leader, record) in self._records.items() if leader == host}
        return any(known.get(run.run) is not run.state for run in runs)

    def take_records(self, host: str, records: Iterable[RunSummary]) -> None:
        """Take in the records of a host's runs, and follow those that are active."""
        with self._lock:
            others = {name: each for name, each in self._records.items() if each[0] != host}
            self._records = others | {record.run: (host, record) for record in records}
            self.version += 1
            active = [name for name, (_, record) in self._records.items() if record.state in ACTIVE_RUN_STATES]
        for run in active:
            self.follow(run)
        self._changed()

    def follow(self, run: str) -> RunHistory:
        """Follow a run up to its result, in a thread of its own, unless that is done already; return its history."""
        with self._lock:
            history = self._histories.pop(run, None) or RunHistory(run)
            self._histories[run] = history  # the last one that is dropped
            is_new = run not in self._followed and history.result is None
            if is_new:
                self._followed.add(run)
            host = self._records[run][0] if run in self._records else None
            for other in list(self._histories)[: -settings.LIVE_HISTORIES]:
                if other not in self._followed:
                    del self._histories[other]
        if is_new:
            self._threads.start(host or self._cluster().head, partial(self._read, history, host))
        return history

    def view(self) -> tuple[LiveRun, ...]:
        """Return the runs, the oldest first."""
        with self._lock:
            runs = [
                LiveRun(host, record, history.progress, history.metrics, history.step, history.wait)
                if (history := self._histories.get(name)) is not None
                else LiveRun(host, record)
                for name, (host, record) in self._records.items()
            ]
        return tuple(sorted(runs, key=lambda run: run.record.started))

    def versions(self) -> dict[str, int]:
        """Return how often each history has changed, by run."""
        with self._lock:
            return {run: history.version for run, history in self._histories.items()}

    def progress(self) -> dict[str, Event]:
        """Return the latest progress of each run that has not ended."""
        with self._lock:
            known = list(self._histories.values())
        return {each.run: each.progress for each in known if each.progress is not None and each.result is None}

    def _read(self, history: RunHistory, host: str | None, context: StreamContext) -> None:
        """Read the events of a run; if that fails, the next change of a run's state tries again."""
        cluster, run = self._cluster(), history.run
        try:
            leader, run = locate_run(cluster, run, start=True) if host is None else (cluster.led_by(host), run)
            for event in read_run_events(leader, run, context, history.version):
                history.update(event)
                self._changed()
        finally:
            with self._lock:
                self._followed.discard(history.run)
            self._changed()
