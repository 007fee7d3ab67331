"""What becomes of a run whose tasks are lost: it fails at once, after a while, or goes on with those that are left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from tfcluster.agent.runs.run import Run
from tfcluster.core.programs import FAULT_TOLERANT_PROGRAMS, blocking_losses, compute_tasks
from tfcluster.errors import ClusterError

#: Seconds without any task before a run that can do with fewer is stopped; one that died is up again by then.
_STRANDED_SECONDS = 5.0


def consider(
    run: Run, every: Collection[str], down: Mapping[str, str], fail: Callable[[Run, ClusterError], None]
) -> None:
    """Stop a run that cannot go on without the tasks that are down.

    One whose program sees to lost tasks itself is stopped only when it has had none for a while.

    Args:
        run: The run, which goes on.
        every: Names of the cluster's tasks.
        down: In words what happened to each of those that do not serve, as `worker:1 died (SIGKILL)`.
        fail: Stops a run because of an error.
    """
    program = run.record.program
    lost = blocking_losses(program, compute_tasks(program, run.record.devices, every), run.record.besides, down)
    if not lost:
        if run.stranded is not None:
            run.stranded.cancel()
            run.stranded = None
        return
    error = ClusterError(
        f"{'; '.join(down[task] for task in lost)} during {run.identity}",
        hint="`tfcluster events` shows what happened; run the program again.",
    )
    if program not in FAULT_TOLERANT_PROGRAMS:
        fail(run, error)
    elif run.stranded is None:
        run.stranded = asyncio.get_running_loop().call_later(_STRANDED_SECONDS, fail, run, error)
