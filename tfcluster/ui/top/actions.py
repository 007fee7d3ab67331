"""The actions of keys of the full-screen view, in other threads; each names the command that does the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from textual.app import App

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.restart import plan_restart, restart_tasks
from tfcluster.client.runs.runs import cancel_run
from tfcluster.errors import ClusterError
from tfcluster.ui.top.dialogs import Question


@dataclass(frozen=True)
class UserAction:
    """Something that changes the cluster."""

    command: str  # the command that does the same
    losses: tuple[str, ...]  # empty if nothing has to be asked
    carry_out: Callable[[], None]  # returns when it is done


def restart_action(cluster: Cluster, task: str) -> UserAction:
    """Return the action that restarts a task; raise ClusterError if the task's host cannot be reached."""
    plan, topology = plan_restart(cluster, [task])

    def restart() -> None:
        statuses = restart_tasks(
            cluster,
            topology,
            plan,
            rolling=False,
            grace=settings.STOP_GRACE_SECONDS,
            timeout=settings.READY_TIMEOUT_SECONDS,
            show_line=lambda line: None,
        )
        for _ in statuses:
            pass  # until it is ready; the view shows it by itself

    yes = " --yes" if plan.losses else ""
    return UserAction(f"tfcluster restart {task}{yes} -c {cluster.name}", plan.losses, restart)


def cancel_action(cluster: Cluster, run: str) -> UserAction:
    """Return the action that cancels a run."""

    def cancel() -> None:
        cancel_run(cluster, run)

    return UserAction(
        f"tfcluster cancel {run} -c {cluster.name}", (f"everything that run {run} has not saved yet",), cancel
    )


class ShowMessage(Protocol):
    """Shows a message."""

    def __call__(self, text: str, *, is_error: bool = False) -> None:
        """Show it."""


class ActionRunner:
    """Plans and executes actions in other threads, and shows their progress and results."""

    def __init__(self, app: App[Any], show_message: ShowMessage) -> None:
        self._app = app
        self._show_message = show_message

    def plan(self, make: Callable[[], UserAction]) -> None:
        """Find out in another thread what an action loses; ask if it loses anything, and carry it out."""

        def plan() -> None:
            try:
                action = make()
            except ClusterError as error:
                self._call(self._show_message, error.message, is_error=True)
                return
            self._call(self._ask if action.losses else self._carry_out, action)

        threading.Thread(target=plan, daemon=True).start()

    def _ask(self, action: UserAction) -> None:
        def answered(answer: bool | None) -> None:
            if answer:
                self._carry_out(action)
            else:
                self._show_message("nothing was done")

        self._app.push_screen(Question(action.command, action.losses), answered)

    def _carry_out(self, action: UserAction) -> None:
        def carry_out() -> None:
            try:
                action.carry_out()
            except ClusterError as error:
                self._call(self._show_message, f"{action.command}: {error.message}", is_error=True)
                return
            self._call(self._show_message, f"done: {action.command}")

        self._show_message(f"$ {action.command}")
        threading.Thread(target=carry_out, daemon=True).start()

    def _call(self, function: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Call a function in the application's thread, unless it has ended meanwhile."""
        if self._app.is_running:
            self._app.call_from_thread(function, *arguments, **options)
