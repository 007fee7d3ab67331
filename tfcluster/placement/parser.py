"""What a server prints of a session's placement, line by line, to records.

A session with `log_device_placement` has its master print a line for each operation, once raw and once more as a log
message of placer.cc. Only the raw ones count; the others come and go with the log level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"(\S+): \((\w+)\): (/job:[^/\s]+/replica:\d+/task:\d+/device:\w+:\d+)")


@dataclass(frozen=True)
class Placement:
    """Where one operation of a graph was placed.

    Attributes:
        op: The operation's name.
        type: Its type, as `MatMul`.
        device: The device's full name.
    """

    op: str
    type: str
    device: str

    def to_event(self) -> dict[str, Any]:
        """The event that tells of it."""
        return {"event": "placement", "op": self.op, "type": self.type, "device": self.device}


def parse(line: str) -> Placement | None:
    """The placement that a line of a server's log tells of; None where it tells of something else."""
    found = _LINE.fullmatch(line)
    return Placement(*found.groups()) if found else None


class PlacementFilter:
    """The placements of one run among everything that servers print, each once.

    Args:
        run: The run's id. A bundled program's operations stand in a name scope of that name, which is left out here.
            None takes those of every session: a script names its operations as it likes.
    """

    def __init__(self, run: str | None) -> None:
        self._scope = "" if run is None else f"{run}/"
        self._known: set[Placement] = set()

    def read(self, line: str) -> Placement | None:
        """The placement of this run that a line tells of; None for all else, and for one told before."""
        placement = parse(line)
        if placement is None or not placement.op.startswith(self._scope):
            return None
        mine = Placement(placement.op.removeprefix(self._scope), placement.type, placement.device)
        if mine in self._known:
            return None
        self._known.add(mine)
        return mine
