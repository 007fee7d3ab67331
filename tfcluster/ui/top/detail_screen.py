"""The screen with the details of a task or a run, and its log."""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from tfcluster import settings
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.logs import Line
from tfcluster.ui.console import Text
from tfcluster.ui.top.log_lines import LogLines


class DetailScreen(Screen[None]):
    """Shows the details of a task or a run, and follows its log.

    The kind is `tasks` or `runs`. `describe` returns the details as they are now. The command shows the same log.
    """

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("escape,backspace", "back", "Back", key_display="Esc"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("n", "find(1)", "Next"),
        Binding("N", "find(-1)", "Previous", show=False),
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
        self, live: LiveCluster, kind: str, subject: str, host: str, describe: Callable[[], Text], command: str
    ) -> None:
        super().__init__()
        self.kind = kind
        self.subject = subject
        self._live = live
        self._host = host
        self._describe = describe
        self._command = command
        self._arrived: list[str] = []
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
        self._stop = self._live.follow_log(self.subject, self._host, self._take)
        self.set_interval(settings.TOP_REFRESH_SECONDS, self.show_now)
        self.show_now()

    def on_unmount(self) -> None:
        """Stop to follow the log."""
        self._stop()

    def _take(self, line: Line) -> None:
        with self._lock:
            self._arrived.append(line["line"])

    def show_now(self) -> None:
        """Show the details as they are now, and the lines that have arrived."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        log = self.query_one(LogLines)
        if arrived:
            log.add(arrived)
        self.query_one("#details", Static).update(self._describe())
        mode = "following" if log.is_following else "End follows"
        found = f", not found: {self._found_none}" if self._found_none else ""
        self.query_one("#heading", Static).update(Text(f" $ {self._command}   {mode}{found}"))

    def action_back(self) -> None:
        """Close the search, or go back."""
        field = self.query_one(Input)
        if field.display:
            field.display = False
            self.query_one(LogLines).focus()
        else:
            self.dismiss(None)

    def action_search(self) -> None:
        """Ask what to search."""
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
