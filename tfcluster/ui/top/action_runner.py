"""Execute what keys of the full-screen view do, in other threads; ask first where work is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from textual.app import App

from tfcluster.errors import ClusterError
from tfcluster.ui.top.actions import UserAction
from tfcluster.ui.top.dialogs import Question


class Say(Protocol):
    """Shows a message."""

    def __call__(self, text: str, *, is_error: bool = False) -> None:
        """Show it."""


class ActionRunner:
    """Plans and executes actions.

    The screen belongs to the application's thread. `say` shows what is executed, and how it ended.
    """

    def __init__(self, app: App[Any], say: Say) -> None:
        self._app = app
        self._say = say

    def plan(self, make: Callable[[], UserAction]) -> None:
        """Find out in another thread what an action loses; ask if it loses anything, and carry it out."""

        def plan() -> None:
            try:
                action = make()
            except ClusterError as error:
                self._call(self._say, error.message, is_error=True)
                return
            self._call(self._ask if action.losses else self._carry_out, action)

        threading.Thread(target=plan, daemon=True).start()

    def _ask(self, action: UserAction) -> None:
        def answered(answer: bool | None) -> None:
            if answer:
                self._carry_out(action)
            else:
                self._say("nothing was done")

        self._app.push_screen(Question(action.command, action.losses), answered)

    def _carry_out(self, action: UserAction) -> None:
        def carry_out() -> None:
            try:
                action.carry_out()
            except ClusterError as error:
                self._call(self._say, f"{action.command}: {error.message}", is_error=True)
                return
            self._call(self._say, f"done: {action.command}")

        self._say(f"$ {action.command}")
        threading.Thread(target=carry_out, daemon=True).start()

    def _call(self, function: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Call a function in the application's thread, unless it has ended meanwhile."""
        if self._app.is_running:
            self._app.call_from_thread(function, *arguments, **options)
