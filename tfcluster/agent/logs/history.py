"""What happened to a cluster and why, a JSON line each, kept across agents and after `down`."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tfcluster.protocol.framing import encode


class History:
    """Appends to the file of events. A full disk costs events, never the supervision."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self, event: str, *, task: str | None = None, detail: str = "") -> None:
        """Append one event.

        Args:
            event: One word for it, as `ready`.
            task: The short name of the task that it happened to; None for the cluster.
            detail: More, for people.
        """
        line = encode({"time": round(time.time(), 3), "event": event, "task": task, "detail": detail})
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)
