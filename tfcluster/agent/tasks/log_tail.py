"""Reads the last lines of a task's output, to show them with the error when the task has failed."""

from __future__ import annotations

import os
from pathlib import Path

from tfcluster import settings


def tail_of_log(log_buffer: Path) -> tuple[str, ...]:
    """Return the last lines of a task's log buffer, at most 8 lines and 4096 bytes, or none if there is no buffer."""
    try:
        with log_buffer.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - settings.FAILED_TASK_LOG_BYTES))
            # A capture buffer begins with a hole, which reads as zeros.
            said = file.read(settings.FAILED_TASK_LOG_BYTES).lstrip(b"\0")
            return tuple(said.decode(errors="replace").splitlines()[-settings.FAILED_TASK_LOG_LINES :])
    except OSError:
        return ()
