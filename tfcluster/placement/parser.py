"""Parse the placements that a TensorFlow server logs for sessions with `log_device_placement`.

For such a session the master prints a line for each operation, once raw and once more as a log message of placer.cc.
Only the raw lines are parsed, because the log messages depend on the log level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"(\S+): \((\w+)\): (/job:[^/\s]+/replica:\d+/task:\d+/device:\w+:\d+)")


@dataclass(frozen=True)
class Placement:
    """The placement of one operation of a graph.

    Attributes:
        op: The operation's name.
        type: The operation's type, as `MatMul`.
        device: The full name of the device.
    """

    op: str
    type: str
    device: str

    def to_event(self) -> dict[str, Any]:
        """Return the placement as an event."""
        return {"event": "placement", "op": self.op, "type": self.type, "device": self.device}


def parse(line: str) -> Placement | None:
    """Parse a line of a server's log.

    Returns:
        The placement; None if the line contains none.
    """
    found = _LINE.fullmatch(line)
    return Placement(*found.groups()) if found else None


class PlacementFilter:
    """Filters the placements of one run from the servers' logs, and returns each of them once.

    Args:
        run: The run's id. A bundled program creates its operations in a name scope of that name, which is removed from
            the placements. None accepts the placements of every session, because a script chooses its names freely.
    """

    def __init__(self, run: str | None) -> None:
        self._scope = "" if run is None else f"{run}/"
        self._known: set[Placement] = set()

    def read(self, line: str) -> Placement | None:
        """Parse a line of a server's log.

        Returns:
            The placement; None if the line contains none of this run, or one that was returned before.
        """
        placement = parse(line)
        if placement is None or not placement.op.startswith(self._scope):
            return None
        mine = Placement(placement.op.removeprefix(self._scope), placement.type, placement.device)
        if mine in self._known:
            return None
        self._known.add(mine)
        return mine
