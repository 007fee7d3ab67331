"""The placements that TensorFlow's servers print for sessions with `log_device_placement`."""

from __future__ import annotations

import re

from tfcluster.core.run_events import PlacementEvent

# A session's master prints each placement once raw, and once more as a log message of placer.cc. Only the raw lines are
# parsed, because the log messages depend on the log level.
_LINE = re.compile(r"(\S+): \((\w+)\): (/job:[^/\s]+/replica:\d+/task:\d+/device:\w+:\d+)")


def parse_placement(line: str) -> PlacementEvent | None:
    """Parse a line of a server's log; return None if it contains no placement."""
    match = _LINE.fullmatch(line)
    return PlacementEvent(*match.groups()) if match else None
