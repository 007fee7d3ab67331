"""What happened to a cluster and why, a JSON line each, kept across agents and after `down`."""

from __future__ import annotations

import time
from pathlib import Path

from tfcluster.processes.logs.rotating_log import RotatingLog
from tfcluster.protocol.codec import encode

_SIZE, _COUNT = 1_000_000, 4


class EventLog:
    """Appends to the log of events. A full disk costs events, never the supervision."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = RotatingLog(path, _SIZE, _COUNT)
        self._position: int | None = None

    def record(self, event: str, *, task: str | None = None, detail: str = "") -> None:
        """Append one event.

        Args:
            event: One word for it, as `ready`.
            task: The short name of the task that it happened to; None for the cluster.
            detail: More, for people.
        """
        now = round(time.time(), 3)
        line = encode({"time": now, "event": event, "task": task, "detail": detail})
        try:
            if self._position is None:
                self._position = self._log.recover()
            self._log.append(line, self._position, now)
            self._position += len(line)
        except OSError:
            self._position = None  # a part of it may be there
