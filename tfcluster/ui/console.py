"""Where output goes: a terminal gets colour and movement, a pipe plain text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from tfcluster.control_characters import escape_control_characters

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


def is_interactive(target: Console) -> bool:
    """Whether things may move on it: only where standard output is a terminal too."""
    return target.file.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _console(*, stderr: bool) -> Console:
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _PIPE_WIDTH
    return SafeConsole(stderr=stderr, width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


class SafeConsole(Console):
    """A console to which no text can send a control character: only what rich itself makes of styles and movement."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a text of a plain string, escaped before it is laid out."""
        return super().render_str(escape_control_characters(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything; this is where a text is escaped that rich made by itself, as in a line of progress."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=escape_control_characters(segment.text))
