"""What `--log-placement` shows: each operation with its device as it is placed, then how many are where."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from tfcluster.ui.format import without_replica
from tfcluster.ui.table import table


def placement_line(event: dict[str, Any]) -> str:
    """A placement event in a line: the device, then the operation, whose name may be long."""
    return f"{without_replica(event['device'])}  {event['op']} ({event['type']})"


class PlacementView:
    """Follows where the operations of a run are placed."""

    def __init__(self) -> None:
        self._types: dict[str, Counter[str]] = {}

    def line(self, event: dict[str, Any]) -> str:
        """The line of a placement event, which counts from now on."""
        self._types.setdefault(without_replica(event["device"]), Counter())[event["type"]] += 1
        return placement_line(event)

    def summary(self) -> Table | None:
        """A row for each device: how many operations it has, and of which types; None when nothing was placed."""
        if not self._types:
            return None
        rows = [
            (device, f"{types.total():,}", ", ".join(f"{count} {name}" for name, count in types.most_common()))
            for device, types in sorted(self._types.items())
        ]
        return table(("DEVICE", "PLACED", "OF WHICH TYPES"), rows, right=("PLACED",))
