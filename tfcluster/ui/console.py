"""The rich consoles on standard output and standard error: colour and live displays on a terminal, else plain text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from tfcluster import settings
from tfcluster.control_characters import escape_control_characters


@cache
def console() -> Console:
    """Return the console on standard output; rich itself honours NO_COLOR and FORCE_COLOR."""
    return _console(stderr=False)


@cache
def error_console() -> Console:
    """Return the console on standard error, for progress."""
    return _console(stderr=True)


def is_interactive(target: Console) -> bool:
    """Return whether a live display may be used on a console: only if standard output is a terminal too."""
    return target.file.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _console(*, stderr: bool) -> Console:
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else settings.PIPE_COLUMNS
    return SafeConsole(stderr=stderr, width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


class SafeConsole(Console):
    """A console that escapes control characters in all text; only rich's own control codes reach the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert a plain string to a Text, with its control characters escaped before rich measures it."""
        return super().render_str(escape_control_characters(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object; this escapes the texts that rich created by itself, such as those of a progress bar."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=escape_control_characters(segment.text))
