"""What keys of the full-screen view change in the cluster; each action names the command that does the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.restart import plan_restart, restart_tasks
from tfcluster.client.runs.runs import cancel_run

Value = TypeVar("Value")


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


async def call_in_thread(function: Callable[[], Value]) -> Value:
    """Call a function in a thread of its own, which does not delay the end of the view as one of asyncio would."""
    outcome: Future[Value] = Future()
    outcome.set_running_or_notify_cancel()  # the end of the view does not cancel it

    def call() -> None:
        try:
            outcome.set_result(function())
        except Exception as error:  # raised again where the result is awaited
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return await asyncio.wrap_future(outcome)
