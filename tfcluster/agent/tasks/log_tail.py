"""The end of what a task printed, for whoever is told that it failed."""

from __future__ import annotations

import os
from pathlib import Path

_LINES = 8
# Enough for that many lines of TensorFlow's; a line of megabytes is cut, not read.
_BYTES = 4096


def tail_of_log(log_buffer: Path) -> tuple[str, ...]:
    """The last lines in a task's spool, at most 8 and 4096 bytes; none where there is no spool."""
    try:
        with log_buffer.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _BYTES))
            said = file.read(_BYTES).lstrip(b"\0")  # a spool begins with a hole
            return tuple(said.decode(errors="replace").splitlines()[-_LINES:])
    except OSError:
        return ()
