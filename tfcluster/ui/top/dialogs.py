"""The dialogs of the full-screen view: a question before work is lost, and the keys."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from tfcluster.ui.console import Text

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
