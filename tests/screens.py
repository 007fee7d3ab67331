"""A full-screen program on a real pseudo-terminal: its screen as text, kept by a terminal emulator."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pexpect
import pyte

#: What one waits for happens, or the test has failed; a busy machine takes long to import Textual.
PATIENCE = 120.0
_UNKNOWN = rb"\x1b\[[<>=?][0-9;]*[upmtc]|\x1bP[^\x1b]*\x1b\\"
DOWN, UP, ENTER, ESCAPE, TAB, END = "\x1b[B", "\x1b[A", "\r", "\x1b", "\t", "\x1b[F"
SUSPEND = "\x1a"


class Terminal:
    """Runs a program on a pseudo-terminal.

    Args:
        command: The program and its arguments.
        environment: Its environment.
        cwd: Its folder.
        columns: The width of the terminal.
        lines: Its height.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path, columns: int = 80, lines: int = 24
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.child = pexpect.spawn(
            command[0],
            list(command[1:]),
            env={**environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
            cwd=str(cwd),
            dimensions=(lines, columns),
            timeout=PATIENCE,
            echo=True,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.close(force=True)

    def _read(self) -> bool:
        """Take in what the program has drawn; return whether it can draw more."""
        try:
            data = self.child.read_nonblocking(1 << 16, 0.1)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        assert isinstance(data, bytes)
        self.raw += data
        # Terminals ignore modes and queries that they do not know; pyte shows some of them.
        self._stream.feed(re.sub(_UNKNOWN, b"", data))
        return True

    @property
    def text(self) -> str:
        """The screen as text, without the blanks at the ends of its lines."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def cells(self) -> list[list[pyte.screens.Char]]:
        """Return the characters of each line, with their colours."""
        return [[self._screen.buffer[y][x] for x in range(self._screen.columns)] for y in range(self._screen.lines)]

    def wait_until(self, is_shown: Callable[[str], object]) -> str:
        """Wait until the screen shows something, and return it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            can_change = self._read()
            if is_shown(self.text):
                return self.text
            assert can_change, f"the program has ended:\n{self.text}"
        raise AssertionError(f"not shown:\n{self.text}")

    def wait_for(self, *patterns: str) -> str:
        """Wait until regular expressions match lines of the screen, and return it."""
        return self.wait_until(lambda text: all(re.search(each, text, re.MULTILINE) for each in patterns))

    def send(self, keys: str) -> None:
        """Press keys."""
        self.child.send(keys)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal."""
        self._screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)

    def wait_for_end(self) -> int:
        """Wait until the program has ended; return its exit code, or minus the signal that ended it."""
        deadline = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        self.child.close()
        status, number = self.child.exitstatus, self.child.signalstatus
        return status if status is not None else -(number or 0)
