"""Where output goes: a terminal gets colour and movement, a pipe plain text."""

from __future__ import annotations

import os
import sys
from functools import cache

from rich.console import Console

# A pipe has no width; nothing is cut or wrapped for it.
_PIPE_WIDTH = 1000


@cache
def console() -> Console:
    """The console on standard output. NO_COLOR and FORCE_COLOR are honoured, which rich sees to."""
    return _console(stderr=False)


@cache
def error_console() -> Console:
    """The console on standard error, for progress."""
    return _console(stderr=True)


def moves(target: Console) -> bool:
    """Whether things may move on it: only where standard output is a terminal too."""
    return target.file.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _console(*, stderr: bool) -> Console:
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)
