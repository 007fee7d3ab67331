"""Follow the placement of a run's operations on devices (`--log-placement`), as the servers log it during the run.

For a session with `log_device_placement` the session's master prints a line for each operation, once raw and once more
as a log message of placer.cc. Only the raw lines are parsed, because the log messages depend on the log level.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import Positions, read_logs
from tfcluster.client.rpc.agent_client import ResponseStream
from tfcluster.client.rpc.parallel import StreamContext, warn
from tfcluster.core.run_events import PlacementEvent, to_record
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.runs import EventRecord

Event = dict[str, Any]

_LINE = re.compile(r"(\S+): \((\w+)\): (/job:[^/\s]+/replica:\d+/task:\d+/device:\w+:\d+)")


def parse_line(line: str) -> PlacementEvent | None:
    """Parse a line of a server's log; return None if it contains no placement."""
    match = _LINE.fullmatch(line)
    return PlacementEvent(*match.groups()) if match else None


class PlacementFilter:
    """Filters the placements of one run from the servers' logs, and returns each of them once.

    A bundled program creates its operations in a name scope of the run's id, which is removed from the placements. A
    run of None accepts the placements of every session, because a script chooses its names freely.
    """

    def __init__(self, run: str | None) -> None:
        self._scope = "" if run is None else f"{run}/"
        self._known: set[PlacementEvent] = set()

    def parse_line(self, line: str) -> PlacementEvent | None:
        """Parse a line of a server's log; return None if it has no placement of this run, or one returned before."""
        placement = parse_line(line)
        if placement is None or not placement.op.startswith(self._scope):
            return None
        placement = replace(placement, op=placement.op.removeprefix(self._scope))
        if placement in self._known:
            return None
        self._known.add(placement)
        return placement


class Placements:
    """Reads the placements that the tasks log after this object was created."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._after: Positions = {}
        self._filter = PlacementFilter(None)
        # On other hosts each poll sends requests over the network.
        self._interval = 0.0 if cluster.is_local else settings.PLACEMENT_REMOTE_POLL_SECONDS
        self._polled_at = 0.0
        self._warned = False
        for _ in read_logs(cluster, lines=0, after=self._after):
            continue

    def keep_only(self, run: str) -> None:
        """Skip the placements of other runs; the operations of a bundled program have its run's id as name scope."""
        self._filter = PlacementFilter(run)

    def poll(self, *, last: bool = False) -> Iterator[Event]:
        """Return the placements that were logged since the last call, as events.

        With `last`, the logs are polled in any case; otherwise those of other hosts are polled only at intervals.
        """
        if not last and time.monotonic() < self._polled_at + self._interval:
            return
        try:
            for line in read_logs(self._cluster, after=self._after):
                placement = self._filter.parse_line(line["line"])
                if placement is not None:
                    yield to_record(placement)
        except ClusterError as error:
            if error.exit_code is not ExitCode.UNREACHABLE:
                raise
            # The run does not depend on this host; its log is read once the host can be reached again.
            if not self._warned:
                warn(error.message)
            self._warned = True
        self._polled_at = time.monotonic()


class PlacementContext(StreamContext):
    """Interleaves the events of a run with its placements. All placements come before the result.

    `context` is that of the stream without placements.
    """

    def __init__(self, context: StreamContext, placements: Placements) -> None:
        super().__init__(context.host)
        self.sleep = context.sleep  # type: ignore[method-assign]
        self._placements = placements

    def events(self, stream: ResponseStream[Any, Any]) -> Iterator[Any]:
        """See `StreamContext.events`."""
        while True:
            while stream.timeout is None and not stream.wait_readable(settings.PLACEMENT_POLL_SECONDS):
                yield from map(EventRecord, self._placements.poll())
            try:
                event = next(stream)
            except StopIteration:
                return
            if event.record["event"] == "result":
                # Complete by now, as a server logs the placement of an operation before it executes it.
                yield from map(EventRecord, self._placements.poll(last=True))
            yield event
