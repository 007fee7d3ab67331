"""Where a run's operations are placed, as the servers print it while the run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import Positions, read_logs
from tfcluster.client.output import tell
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.placement.parser import PlacementFilter

Event = dict[str, Any]

# Seconds between two looks at what the servers of other hosts print; each asks every host.
_APART_SECONDS = 1.0


class Placements:
    """Reads what the tasks print from now on.

    Args:
        cluster: The cluster.

    Raises:
        ClusterError: It is not running.
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
        """Pass over what other runs place; a bundled program's operations bear its run's name."""
        self._mine = PlacementFilter(run)

    def news(self, *, last: bool = False) -> Iterator[Event]:
        """The placements that were printed since the last call, as events.

        Args:
            last: Look in any case; else other hosts are not asked all the time.
        """
        if not (last or self._cluster.is_here or time.monotonic() > self._looked + _APART_SECONDS):
            return
        try:
            for line in read_logs(self._cluster, after=self._after):
                placement = self._mine.read(line["line"])
                if placement is not None:
                    yield placement.to_event()
        except ClusterError as error:
            if error.exit_code is not ExitCode.UNREACHABLE or self._cluster.is_here:
                raise
            if not self._told:  # the run does not depend on it; what is printed there is read when it is back
                tell(error.message)
            self._told = True
        self._looked = time.monotonic()
