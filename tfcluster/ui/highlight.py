"""Highlight, on a terminal, what regular expressions match in lines whose control characters are escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from tfcluster.control_characters import escape_all_control_characters, escape_control_characters
from tfcluster.core.text import compile_patterns
from tfcluster.errors import ClusterError
from tfcluster.ui.console import Text, console

_STYLE = "bold red"  # as grep has it


class Highlighter:
    """Escapes lines for standard output, and highlights what matches on a terminal that is to have colours.

    A regular expression that this Python does not know is left out: hosts may have a later Python.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._expressions = []
        self._begin = self._end = ""
        screen = console()
        if screen.color_system is None or screen.no_color:
            return
        for pattern in patterns:
            with suppress(ClusterError):
                self._expressions += compile_patterns([pattern])
        with screen.capture() as captured:
            screen.print(Text("-", style=_STYLE), end="")
        self._begin, _, self._end = captured.get().partition("-")

    def escape(self, line: str) -> str:
        """Return a line with its control characters escaped, and with what matches highlighted.

        The expressions are applied to the line as it was printed, as the search for lines applies them.
        """
        if not self._expressions:
            return escape_control_characters(line)
        parts, at = [], 0
        shown = len(line.removesuffix("\r"))
        for start, end in self._matches(line):
            end = min(end, shown)
            if start < end:
                match = escape_all_control_characters(line[start:end])
                parts += [escape_all_control_characters(line[at:start]), self._begin, match, self._end]
                at = end
        return "".join([*parts, escape_all_control_characters(line[at:shown])])

    def _matches(self, line: str) -> Iterator[tuple[int, int]]:
        """Yield where the matches of all expressions begin and end, in order; those that overlap or touch are one."""
        first = last = 0
        for start, end in sorted(match.span() for each in self._expressions for match in each.finditer(line)):
            if start > last:
                yield first, last
                first = start
            last = max(last, end)
        yield first, last
