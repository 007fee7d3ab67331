"""The latest events of a cluster that is followed."""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.stream_threads import StreamThreads
from tfcluster.client.logs import Line, read_host
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.logs import EventsRequest


class LiveEvents:
    """Follows the events of hosts, and keeps the latest. Thread-safe.

    `changed` is called from other threads after each event; `count` is how many events have arrived.
    """

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        threads: StreamThreads,
        is_down: Callable[[str], bool],
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._threads = threads
        self._is_down = is_down
        self._changed = changed
        self._lock = threading.Lock()
        self._events: list[tuple[float, int, Line]] = []  # with their times, and the numbers of their arrivals
        self.count = 0

    def follow(self, host: str, stopped: threading.Event) -> None:
        """Follow the events of a host in another thread, until it is stopped."""
        self._threads.start(host, partial(self._read, host), stopped)

    def latest(self) -> tuple[Line, ...]:
        """Return the latest events, the oldest first."""
        with self._lock:
            return tuple(event for _, _, event in self._events)

    def between(self, first: int, last: int) -> list[Line]:
        """Return those of the latest events that have arrived after `first` others and up to `last`, oldest first."""
        with self._lock:
            return [event for _, number, event in self._events if first < number <= last]

    def _read(self, host: str, context: StreamContext) -> None:
        """Read the events of a host, which may be away at first, and on which the cluster may be down for a time."""
        while True:
            follows = not self._is_down(host)
            request = EventsRequest(settings.LIVE_EVENTS, None, follows, {})
            with contextlib.suppress(ClusterError):
                for event in read_host(self._cluster().connect(host), request, {}, None, context):
                    self._take(self._cluster().add_host(event, host))
            context.sleep(settings.LIVE_RETRY_SECONDS)
            while not follows and self._is_down(host):
                context.sleep(settings.LIVE_RETRY_SECONDS)

    def _take(self, event: Line) -> None:
        with self._lock:
            if any(event == known for _, _, known in self._events):  # read once more, as the link was lost
                return
            self.count += 1
            bisect.insort(self._events, (float(event["time"]), self.count, event))
            del self._events[: -settings.LIVE_EVENTS]
        self._changed()
