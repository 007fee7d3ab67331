"""The output of `tfcluster logs`: each line with its task's name as prefix, each task in a colour of its own."""

from __future__ import annotations

from datetime import datetime, timezone

from tfcluster.control_characters import escape_control_characters
from tfcluster.ui.console import console
from tfcluster.ui.text import Text

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class LogView:
    """Prints log lines of several tasks.

    Args:
        prefix: Prefix each line with its task's name.
        timestamps: Prefix each line with its time.
    """

    def __init__(self, *, prefix: bool = True, timestamps: bool = False) -> None:
        self._prefix = prefix
        self._timestamps = timestamps
        self._styles: dict[str, str] = {}
        self._prefixes: dict[str, str] = {}
        self._width = 0

    def show(self, task: str, time: float, line: str) -> None:
        """Print one log line.

        Args:
            task: The short name of its task.
            time: The time at which the line was logged, in Unix seconds.
            line: The line.
        """
        moment = f"{_iso(time)} " if self._timestamps else ""
        # Do not print through rich: the line must be neither wrapped at the terminal's width nor parsed as markup, and
        # rich takes longer for one line than the agent takes for a hundred.
        out = console().file
        out.write(f"{self._before(task)}{moment}{escape_control_characters(line)}\n")
        out.flush()

    def _before(self, task: str) -> str:
        if not self._prefix:
            return ""
        if task not in self._prefixes:
            self._styles[task] = _COLOURS[len(self._styles) % len(_COLOURS)]
            self._width = max(self._width, len(task))
            for each, style in self._styles.items():
                with console().capture() as captured:
                    console().print(Text(f"{each:<{self._width}} | ", style=style), end="")
                self._prefixes[each] = captured.get()
        return self._prefixes[task]


def _iso(time: float) -> str:
    """Format a time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
