"""A widget that shows a growing log: it follows the end, scrolls, and finds text."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tfcluster import settings
from tfcluster.ui.console import Text

_FOUND, _CURRENT = Style(underline=True, bold=True), Style(reverse=True)


class LogLines(ScrollView, can_focus=True):
    """Shows the lines of a log, and stays at the end as the log grows while `is_following`.

    `pattern` is what was searched; empty for nothing.
    """

    BINDINGS = [Binding("end", "follow", "Follow", key_display="End")]  # noqa: RUF012 - as Textual has it

    def __init__(self) -> None:
        super().__init__()
        self.is_following = True
        self.pattern = ""
        self._lines: list[Text] = []
        self._found: int | None = None

    def add(self, lines: list[str]) -> None:
        """Append lines; of too many, the oldest are dropped."""
        self._lines += [Text(line.expandtabs()) for line in lines]
        excess = len(self._lines) - settings.LIVE_LOG_LINES_MAX
        if excess > 0:
            del self._lines[:excess]
            self._found = None
        self._resize()

    def _resize(self) -> None:
        width = max((line.cell_len for line in self._lines), default=0)
        self.virtual_size = Size(max(width, 1), max(len(self._lines), 1))
        if self.is_following:
            self.scroll_end(animate=False)
        self.refresh()

    def find(self, pattern: str, step: int) -> bool:
        """Go to the next line that contains a text, in upper or lower case; return whether there is one.

        A step of -1 goes to the previous one.
        """
        self.pattern = pattern
        count = len(self._lines)
        start = self._found if self._found is not None else (count if step < 0 else count - 1)
        for distance in range(1, count + 1):
            at = (start + step * distance) % count
            if pattern.lower() in self._lines[at].plain.lower():
                self._found, self.is_following = at, False
                self.scroll_to(y=max(0, at - self.size.height // 2), animate=False)
                self.refresh()
                return True
        self.refresh()
        return False

    def action_follow(self) -> None:
        """Go to the end and stay there."""
        self.is_following, self._found = True, None
        self.scroll_end(animate=False)

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Stop to follow when the user scrolls up, and follow again at the end."""
        super().watch_scroll_y(old, new)
        if new < old:
            self.is_following = False
        elif new >= self.max_scroll_y and self._found is None:
            self.is_following = True

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        at = y + int(self.scroll_y)
        width = self.size.width
        if at >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        line = self._lines[at].copy()
        if self.pattern:
            style = _CURRENT if at == self._found else _FOUND
            line.highlight_words([self.pattern], style, case_sensitive=False)
        segments = [Segment(each.text, each.style) for each in line.render(self.app.console)]
        strip = Strip(segments).crop_extend(int(self.scroll_x), int(self.scroll_x) + width, self.rich_style)
        return strip.apply_style(self.rich_style)
