"""The event log of a run: JSON lines in a file, which exists independently of the processes that read it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from tfcluster.protocol.codec import encode


class RunEventLog:
    """Appends events to a run's file.

    Each line is written by a single write call, so that a reader does not see a partial line for long.

    Args:
        path: The file, which is created by the first event.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def emit(self, event: str, **fields: Any) -> None:
        """Append an event.

        Args:
            event: The type of the event.
            **fields: The fields of the event, which must be serialisable as JSON.

        Raises:
            OSError: The event could not be written, or only a part of it.
        """
        line = encode({"event": event, **fields})
        # The file is opened for each event: a driver writes at most ten events per second, and the agent need not keep
        # a descriptor open for every run.
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = os.fstat(fd).st_size
            if end and os.pread(fd, 1, end - 1) != b"\n":  # a full disk truncated the last event
                line = b"\n" + line
            if os.write(fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(fd)
