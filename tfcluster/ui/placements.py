"""The output of `--log-placement`: each operation with its device, then a summary of the operations per device."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from tfcluster.ui.format import without_replica
from tfcluster.ui.table import table


def placement_line(event: dict[str, Any]) -> str:
    """Format a placement event as a line: the device first, then the operation, whose name may be long."""
    return f"{without_replica(event['device'])}  {event['op']} ({event['type']})"


class PlacementView:
    """Formats and counts the placements of a run's operations."""

    def __init__(self) -> None:
        self._types: dict[str, Counter[str]] = {}

    def line(self, event: dict[str, Any]) -> str:
        """Add a placement event to the summary and return its line."""
        self._types.setdefault(without_replica(event["device"]), Counter())[event["type"]] += 1
        return placement_line(event)

    def summary(self) -> Table | None:
        """Summarize the placements in a table with a row for each device: the number and types of its operations.

        Returns:
            The table; None if nothing was placed.
        """
        if not self._types:
            return None
        rows = [
            (device, f"{types.total():,}", ", ".join(f"{count} {name}" for name, count in types.most_common()))
            for device, types in sorted(self._types.items())
        ]
        return table(("DEVICE", "PLACED", "OF WHICH TYPES"), rows, right=("PLACED",))
