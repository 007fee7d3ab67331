"""A run's events as JSON lines in a file, which outlives whoever follows it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from tfcluster.protocol.codec import encode


class RunEventLog:
    """Appends events to a run's file; one write a line, so that a reader never meets a torn one for long."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event.

        Raises:
            OSError: It cannot be written, or not as a whole.
        """
        line = encode({"event": event, **fields})
        # Opened for each: a driver writes ten a second at most, and an agent keeps no descriptor for every run.
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = os.fstat(fd).st_size
            if end and os.pread(fd, 1, end - 1) != b"\n":  # a full disk cut the last one short
                line = b"\n" + line
            if os.write(fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(fd)
