"""The terminal that the full-screen view is on, and the signals that come from it and from the shell."""

from __future__ import annotations

import os
import signal
import termios
from types import FrameType
from typing import Any

from textual.app import App

from tfcluster.errors import ExitCode

_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,
}


def _end_without_terminal() -> None:
    """End this process if its terminal was closed: Textual would wait forever until it can write to it."""
    try:
        termios.tcgetattr(0)
    except termios.error:
        os._exit(int(ExitCode.TERMINATED))


class TerminalSignals:
    """Ends the view at a signal, and lets a shell stop and continue it, as it does with other programs.

    Textual would stop its own process alone, even if a script has started it, which then waits for it, and if no shell
    could continue it; and a process that is continued after SIGSTOP would mistake its own modes for the terminal's.
    """

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._ending: int | None = None
        self._stopping: int | None = None

    def start(self) -> None:
        """Handle the signals; Textual's driver, which has handlers too, has been started."""
        for number in (*_CODES, signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number in _CODES:
            _end_without_terminal()
            self._ending = number
        else:
            self._stopping = number

    def handle(self) -> int | None:
        """Handle the last signal; return the code with which the view has to exit, or None if it continues."""
        _end_without_terminal()
        if self._ending is not None:
            return int(_CODES[signal.Signals(self._ending)])
        number, self._stopping = self._stopping, None
        if number == signal.SIGTSTP:
            self.suspend()
        elif number == signal.SIGCONT:
            with self._app.suspend():  # draws everything again
                pass
        return None

    def suspend(self) -> None:
        """Stop all processes of the shell's job, until the shell continues them; without a shell, nothing happens."""
        with self._app.suspend():
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.killpg(0, signal.SIGTSTP)
            self._stopping = None
            self.start()
