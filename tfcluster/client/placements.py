"""Where a run's operations are placed, as the servers print it while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfcluster.client.logs import read_logs
from tfcluster.placement.records import PlacementsOfRun

Event = dict[str, Any]


class Placements:
    """Reads what the tasks print from now on.

    Args:
        cluster: The cluster.

    Raises:
        ClusterError: It is not running.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._after: dict[str, int] = {}
        self._mine = PlacementsOfRun(None)
        for _ in read_logs(cluster, lines=0, after=self._after):
            continue

    def only_those_of(self, run: str) -> None:
        """Pass over what other runs place; a bundled program's operations bear its run's name."""
        self._mine = PlacementsOfRun(run)

    def news(self) -> Iterator[Event]:
        """The placements that were printed since the last call, as events."""
        for line in read_logs(self._cluster, after=self._after):
            placement = self._mine.read(line["line"])
            if placement is not None:
                yield placement.to_event()
