"""What `logs` shows: each line behind its task's name, each task in a colour of its own."""

from __future__ import annotations

from rich.text import Text

from tfcluster.render.console import console

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class LogView:
    """Prints lines of several tasks."""

    def __init__(self) -> None:
        self._styles: dict[str, str] = {}
        self._width = 0

    def show(self, task: str, line: str) -> None:
        """Print one line of a task."""
        style = self._styles.setdefault(task, _COLOURS[len(self._styles) % len(_COLOURS)])
        self._width = max(self._width, len(task))
        prefix = Text(f"{task:<{self._width}} | ", style=style)
        # A log line is whole wherever the terminal ends, and is itself no markup.
        console().print(prefix + Text(line), soft_wrap=True)
