"""The terminal that the full-screen view is on."""

from __future__ import annotations

import os
import termios

from tfcluster.errors import ExitCode


def end_without_terminal() -> None:
    """End this process if its terminal was closed: Textual would wait for ever until it can write to it."""
    try:
        termios.tcgetattr(0)
    except termios.error:
        os._exit(int(ExitCode.TERMINATED))
