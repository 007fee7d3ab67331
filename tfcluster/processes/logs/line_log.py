"""A rotating log for the lines that a process writes about its own work."""

from __future__ import annotations

from pathlib import Path

from tfcluster import settings
from tfcluster.processes.logs.rotating_log import RotatingLog


class LineLog:
    """Appends lines to a rotating log, and loses them if that is not possible.

    Args:
        path: The newest file of the log.
    """

    def __init__(self, path: Path) -> None:
        self._log = RotatingLog(path, settings.EVENT_LOG_FILE_BYTES, settings.EVENT_LOG_FILES)
        self._position: int | None = None

    def append(self, lines: bytes, now: float) -> None:
        """Append complete lines that were written at a time."""
        try:
            if self._position is None:
                self._position = self._log.recover()
            self._log.append(lines, self._position, now)
            self._position += len(lines)
        except OSError:
            self._position = None  # a part of a line may have been written: find the end of the log again
