"""Reads the last lines of a task's output, to show them with the error when the task has failed."""

from __future__ import annotations

import os
from pathlib import Path

_LINES = 8
# Enough for this many of TensorFlow's lines. A line of megabytes is truncated instead of being read.
_BYTES = 4096


def tail_of_log(log_buffer: Path) -> tuple[str, ...]:
    """Return the last lines of a task's log buffer, at most 8 lines and 4096 bytes, or none if there is no buffer."""
    try:
        with log_buffer.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _BYTES))
            said = file.read(_BYTES).lstrip(b"\0")  # a log buffer begins with a hole, which reads as zeros
            return tuple(said.decode(errors="replace").splitlines()[-_LINES:])
    except OSError:
        return ()
