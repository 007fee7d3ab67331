"""The screens above the tables: the details of a task or run with its log, a question before work is lost, the keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.geometry import Size
from textual.reactive import reactive
from textual.screen import ModalScreen, Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from tfcluster import settings
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.logs import Line
from tfcluster.core.log_levels import LogLevel
from tfcluster.ui.console import Text

_FOUND, _CURRENT = Style(underline=True, bold=True), Style(reverse=True)


class DetailScreen(Screen[None]):
    """Shows the details (`describe`) of a task or a run (`kind` is `tasks` or `runs`), and follows its log.

    `has_ended` returns whether it is a run that has ended: nothing comes any more.
    """

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("escape,backspace", "back", "Back", key_display="Esc"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("n", "find(1)", "Next"),
        Binding("N", "find(-1)", "Previous", show=False),
        Binding("l", "level", "Level"),
        Binding("r", "app.restart", "Restart"),
        Binding("c", "app.cancel", "Cancel"),
        Binding("question_mark", "app.help", "Help", key_display="?"),
        Binding("q", "app.leave", "Quit"),
    ]
    CSS = """
    DetailScreen #details { height: auto; max-height: 40%; }
    DetailScreen #heading { height: 1; text-style: reverse; }
    DetailScreen LogLines { height: 1fr; }
    DetailScreen Input { display: none; height: 1; border: none; padding: 0; }
    """

    def __init__(
        self,
        live: LiveCluster,
        kind: str,
        subject: str,
        host: str,
        describe: Callable[[], Text],
        command: str,
        has_ended: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.kind = kind
        self.subject = subject
        self._live = live
        self._host = host
        self._describe = describe
        self._command = command
        self._has_ended = has_ended
        self._level = LogLevel.WARNING
        self._arrived: list[str] = []
        self._hidden = 0
        self._lock = threading.Lock()
        self._stop: Callable[[], None] = lambda: None
        self._found_none = ""

    def compose(self) -> ComposeResult:
        """Show the details above the log."""
        yield Static(id="details")
        yield Static(id="heading")
        yield LogLines()
        yield Input(placeholder="search", compact=True, select_on_focus=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Start to follow the log."""
        self.query_one(LogLines).focus()
        self._follow()
        self.set_interval(settings.TOP_REFRESH_SECONDS, self.show_now)
        self.show_now()

    def on_unmount(self) -> None:
        """Stop following the log."""
        self._stop()

    def _follow(self) -> None:
        """Follow the log from the level on; what still arrives of the previous level is dropped."""
        self._stop()
        arrived: list[str] = []
        with self._lock:
            self._arrived, self._hidden = arrived, 0

        def take(line: Line) -> None:
            with self._lock:
                arrived.append(line["line"])

        def count(hidden: int) -> None:
            with self._lock:
                self._hidden += hidden if self._arrived is arrived else 0

        self._stop = self._live.follow_log(self.subject, self._host, self._level, take, count)

    def action_level(self) -> None:
        """Show the log from the next level on: all that TensorFlow logs, warnings, or only errors."""
        levels = list(LogLevel)
        self._level = levels[(levels.index(self._level) + 1) % len(levels)]
        self.query_one(LogLines).clear()
        self._found_none = ""
        self._follow()
        self.show_now()

    def show_now(self) -> None:
        """Show the details as they are now, and the lines that have arrived."""
        with self._lock:
            arrived = self._arrived[:]
            self._arrived.clear()
        log = self.query_one(LogLines)
        if arrived:
            log.add(arrived)
        self.query_one("#details", Static).update(self._describe())
        has_ended = self._has_ended()
        mode = "ended" if has_ended else "following" if log.is_following else "End follows"
        found = f", not found: {self._found_none}" if self._found_none else ""
        is_default = self._level is LogLevel.WARNING  # as on a terminal, where the command would be typed
        command = self._command if is_default else f"{self._command} --level {self._level.value}"
        hidden = f", {self._hidden:,} hidden" if self._hidden else ""
        log.when_empty = " no entries at this level" if hidden else " no output" if has_ended else " no output yet"
        self.query_one("#heading", Static).update(Text(f" $ {command}   {mode}{found or hidden}"))

    def action_back(self) -> None:
        """Close the search, or go back."""
        field = self.query_one(Input)
        if field.display:
            field.display = False
            self.query_one(LogLines).focus()
        else:
            self.dismiss(None)

    def action_search(self) -> None:
        """Ask for the text to search."""
        field = self.query_one(Input)
        field.display = True
        field.value = ""
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Wait for Enter; the event is not for the filter of the tables."""
        event.stop()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search, from the end back as the latest lines matter most."""
        event.stop()
        event.input.display = False
        log = self.query_one(LogLines)
        log.focus()
        log.pattern = event.value
        if event.value:
            self.action_find(-1)
        else:
            self._found_none = ""
            log.refresh()

    def action_find(self, step: int) -> None:
        """Go to the next line that was searched, or to the previous one."""
        log = self.query_one(LogLines)
        if log.pattern:
            self._found_none = "" if log.find(log.pattern, step) else log.pattern
            self.show_now()


class LogLines(ScrollView, can_focus=True):
    """Shows the lines of a log, and stays at the end as the log grows while `is_following`."""

    BINDINGS = [Binding("end", "follow", "Follow", key_display="End")]  # noqa: RUF012 - as Textual has it
    when_empty = reactive("")  # shown in place of lines

    def __init__(self) -> None:
        super().__init__()
        self.is_following = True
        self.pattern = ""  # what was searched
        self._lines: list[Text] = []
        self._found: int | None = None

    def clear(self) -> None:
        """Drop all lines, and follow."""
        self._lines, self._found, self.is_following = [], None, True
        self._resize()

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
        """Go to the next (-1: the previous) line that contains a text, ignoring case; return whether there is one."""
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
        """Stop following when the user scrolls up, and follow again at the end."""
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
            text = self.when_empty if at == 0 else ""
            return Strip([Segment(text, Style(dim=True))]).crop_extend(0, width, self.rich_style)
        line = self._lines[at].copy()
        if self.pattern:
            style = _CURRENT if at == self._found else _FOUND
            line.highlight_words([self.pattern], style, case_sensitive=False)
        segments = [Segment(each.text, each.style) for each in line.render(self.app.console)]
        strip = Strip(segments).crop_extend(int(self.scroll_x), int(self.scroll_x) + width, self.rich_style)
        return strip.apply_style(self.rich_style)


KEYS = (
    ("Up, Down, PgUp, PgDn", "choose; Tab changes between tasks and runs"),
    ("Enter", "its details and its log, which is followed"),
    ("r", "restart the task"),
    ("c", "cancel the run"),
    ("s", "sort the tasks by the next column"),
    ("f", "show only rows with a text; Esc shows all again"),
    ("/, n, N", "in a log: search; the next and the previous match"),
    ("l", "in a log: everything, from warnings on, or only errors"),
    ("End", "in a log: follow it again"),
    ("Esc", "back"),
    ("q, Ctrl-C", "quit; the cluster keeps running"),
    ("Ctrl-Z", "back to the shell, until fg"),
)


class Question(ModalScreen[bool]):
    """Asks whether to execute a command that loses something."""

    BINDINGS = [("y", "answer(True)", "Yes"), ("n,escape", "answer(False)", "No")]  # noqa: RUF012 - as Textual has it
    CSS = """
    Question { align: center middle; }
    Question Vertical { width: 76; max-width: 100%; height: auto; border: round $accent; padding: 0 1; }
    """

    def __init__(self, command: str, losses: Sequence[str]) -> None:
        super().__init__()
        self._command = command
        self._losses = losses

    def compose(self) -> ComposeResult:
        """Show the command, its losses, and the answers."""
        lost = [part for loss in self._losses for part in ("\nLOST: ", loss)]
        text = Text.assemble(
            (f"$ {self._command}", "bold"), *lost, "\n\nRun it? ", ("y", "bold"), "es, ", ("n", "bold"), "o"
        )
        with Vertical():
            yield Static(text)

    def action_answer(self, answer: bool) -> None:
        """Close the dialog with the answer."""
        self.dismiss(answer)


class Help(ModalScreen[None]):
    """Shows the keys."""

    BINDINGS = [("escape,q,question_mark,enter", "dismiss(None)", "Back")]  # noqa: RUF012
    CSS = """
    Help { align: center middle; }
    Help Vertical { width: 78; max-width: 100%; height: auto; border: round $accent; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        """Show the keys, and how to go back."""
        with Vertical():
            width = max(len(key) for key, _ in KEYS)
            lines = [part for key, text in KEYS for part in ((f"{key:<{width}}", "bold"), f"  {text}\n")]
            yield Static(Text.assemble(*lines, ("\nEsc goes back.", "dim")))
