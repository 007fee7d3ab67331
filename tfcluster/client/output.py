"""Print warnings and notes to standard error, beside a command's output."""

from __future__ import annotations

import sys

from tfcluster.control_characters import escape_control_characters


def warn(text: str) -> None:
    """Print a warning or a note to standard error.

    Call it from the main thread only: another thread that blocks while it writes could keep the command from exiting.
    """
    print(escape_control_characters(text), file=sys.stderr, flush=True)
