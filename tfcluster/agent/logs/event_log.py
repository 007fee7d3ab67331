"""The event log of a cluster in JSON Lines format: what happened and why. It is kept across agents and after `down`."""

from __future__ import annotations

import time
from pathlib import Path

from tfcluster import settings
from tfcluster.processes.logs.rotating_log import RotatingLog
from tfcluster.protocol.codec import encode


class EventLog:
    """Appends events to the event log. If the disk is full, events are lost, but supervision continues.

    Args:
        path: The newest file of the log.

    Attributes:
        path: The newest file of the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = RotatingLog(path, settings.EVENT_LOG_FILE_BYTES, settings.EVENT_LOG_FILES)
        self._position: int | None = None

    def record(self, event: str, *, task: str | None = None, detail: str = "") -> None:
        """Append one event.

        Args:
            event: The name of the event, such as `ready`.
            task: The short name of the task that the event concerns; None for the whole cluster.
            detail: A human-readable description.
        """
        now = round(time.time(), 3)
        line = encode({"time": now, "event": event, "task": task, "detail": detail})
        try:
            if self._position is None:
                self._position = self._log.recover()
            self._log.append(line, self._position, now)
            self._position += len(line)
        except OSError:
            self._position = None  # a part of the line may have been written: find the end of the log again
