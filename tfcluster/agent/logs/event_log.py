"""The logs that the agent writes itself: the cluster's events in JSON Lines format, and the agent's own log.

Both are kept across agents and after `down`. If the disk is full, lines are lost, but supervision continues.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from tfcluster import settings
from tfcluster.processes.rotating_log import RotatingLog
from tfcluster.protocol.codec import encode

_logger = logging.getLogger(__name__)


class EventLog:
    """Appends events to the event log, and to the agent's own log.

    Args:
        path: The newest file of the log.

    Attributes:
        path: The newest file of the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = _LineLog(path)

    def record(self, event: str, *, task: str | None = None, detail: str = "") -> None:
        """Append one event.

        Args:
            event: The name of the event, such as `ready`.
            task: The short name of the task that the event concerns; None for the whole cluster.
            detail: A human-readable description.
        """
        now = round(time.time(), 3)
        self._lines.append(encode({"time": now, "event": event, "task": task, "detail": detail}), now)
        _logger.info("%s", f"{event}: {detail}" if detail else event, extra={"task": task})


class AgentLogHandler(logging.Handler):
    """Writes log records to the agent's own log: after the time that the log adds, the level, the task and the message.

    A record may have the short name of a task as its attribute `task`. Each line of a traceback is a line of the log.

    Args:
        path: The newest file of the log.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._lines = _LineLog(path)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record."""
        task = getattr(record, "task", None)
        text = f"{record.levelname:<7} {f'{task} ' if task else ''}{self.format(record)}\n"
        self._lines.append(text.encode(errors="backslashreplace"), record.created)


class _LineLog:
    """Appends lines to a rotating log, and loses them if that is not possible."""

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
