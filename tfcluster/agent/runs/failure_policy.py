"""The failure policy of runs: whether a run fails at once, fails after a timeout or continues when tasks are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from tfcluster import settings
from tfcluster.agent.runs.run import Run
from tfcluster.core.programs import blocking_losses, compute_tasks
from tfcluster.errors import ClusterError


def fail_if_blocked(
    run: Run, every: Collection[str], down: Mapping[str, str], fail: Callable[[Run, ClusterError], None]
) -> None:
    """Stop a run that cannot continue without the tasks that are down.

    A run of a fault-tolerant program handles lost tasks itself. It is stopped only after it has had no task for
    `settings.RUN_ALL_TASKS_LOST_SECONDS`.

    Args:
        run: The run, which is active.
        every: Names of the cluster's tasks.
        down: What happened to each task that does not serve, by the task's name, such as `worker:1 died (SIGKILL)`.
        fail: Called with the run and an error to stop the run.
    """
    traits = run.record.traits
    lost = blocking_losses(traits, compute_tasks(traits, run.record.devices, every), run.record.required_tasks, down)
    if not lost:
        if run.all_lost_timer is not None:
            run.all_lost_timer.cancel()
            run.all_lost_timer = None
        return
    error = ClusterError(
        f"{'; '.join(down[task] for task in lost)} during {run.id}",
        hint="`tfcluster events` shows what happened; run the program again.",
    )
    if not traits.fault_tolerant:
        fail(run, error)
    elif run.all_lost_timer is None:
        run.all_lost_timer = asyncio.get_running_loop().call_later(
            settings.RUN_ALL_TASKS_LOST_SECONDS, fail, run, error
        )
