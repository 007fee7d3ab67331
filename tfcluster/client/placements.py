"""Follow the placement of a run's operations on devices (`--log-placement`), as the servers log it during the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import Positions, read_logs
from tfcluster.client.output import tell
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.placement.parser import PlacementFilter

Event = dict[str, Any]


class Placements:
    """Reads the placements that the tasks log after this object was created.

    Args:
        cluster: The cluster.

    Raises:
        ClusterError: The cluster is not running.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._after: Positions = {}
        self._mine = PlacementFilter(None)
        self._looked = 0.0
        self._told = False
        for _ in read_logs(cluster, lines=0, after=self._after):
            continue

    def only_those_of(self, run: str) -> None:
        """Skip the placements of other runs; the operations of a bundled program have its run's id as name scope."""
        self._mine = PlacementFilter(run)

    def news(self, *, last: bool = False) -> Iterator[Event]:
        """Return the placements that were logged since the last call, as events.

        Args:
            last: Poll the logs in any case. Otherwise the logs of other hosts are polled only at intervals.
        """
        if not (
            last or self._cluster.is_here or time.monotonic() > self._looked + settings.PLACEMENT_REMOTE_POLL_SECONDS
        ):
            return
        try:
            for line in read_logs(self._cluster, after=self._after):
                placement = self._mine.read(line["line"])
                if placement is not None:
                    yield placement.to_event()
        except ClusterError as error:
            if error.exit_code is not ExitCode.UNREACHABLE or self._cluster.is_here:
                raise
            # The run does not depend on this host; its log is read once the host can be reached again.
            if not self._told:
                tell(error.message)
            self._told = True
        self._looked = time.monotonic()
