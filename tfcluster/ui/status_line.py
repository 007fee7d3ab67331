"""A status line that shows what a command waits for: a spinner on a terminal, one line per change in a pipe."""

from __future__ import annotations

from types import TracebackType

from rich.status import Status

from tfcluster.ui.console import error_console, is_interactive


class StatusLine:
    """Shows one line at a time, on standard error.

    Args:
        silent: Show nothing.
    """

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._shown = ""
        self._status: Status | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def show(self, text: str) -> None:
        """Replace the text of the status line."""
        if self._silent or text == self._shown:
            return
        self._shown = text
        screen = error_console()
        if not is_interactive(screen):
            screen.print(text)
        elif self._status is None:
            self._status = screen.status(text)
            self._status.start()
        else:
            self._status.update(text)
