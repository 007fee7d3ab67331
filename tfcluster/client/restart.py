"""Restarting tasks: what is lost by it, and having it done, all at once or one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfcluster.client.connection import Connection
from tfcluster.client.up import watch_until_ready
from tfcluster.model.layout import PS_JOB, matching_tasks
from tfcluster.model.states import ACTIVE, WITH_PROCESS
from tfcluster.model.status import ClusterStatus
from tfcluster.protocol.messages import Call


@dataclass(frozen=True)
class Restart:
    """What a restart is about.

    Attributes:
        cluster: The cluster's name.
        tasks: Short names of the tasks, the ps first: the others then meet the ps that stays.
        holders: Those of them that hold variables, which go with their processes: the ps; in a cluster without one,
            where variables are on any task, every task. One without a process has nothing left to lose.
        runs: The runs that are going on; those that compute on one of the tasks fail.
    """

    cluster: str
    tasks: tuple[str, ...]
    holders: tuple[str, ...]
    runs: tuple[str, ...]


def plan_restart(cluster: str, wanted: Sequence[str]) -> Restart:
    """What restarting tasks of a cluster is about; changes nothing.

    Args:
        cluster: Its name.
        wanted: Tasks or jobs, as `worker:1` or `worker`; none for all tasks.

    Raises:
        ClusterError: The cluster is not running, or has no such task.
    """
    return restart_of(ClusterStatus.from_json(Connection(cluster).call(Call.STATUS)), wanted)


def restart_of(status: ClusterStatus, wanted: Sequence[str]) -> Restart:
    """What restarting tasks of a cluster with this status is about; arguments and errors as in `plan_restart`."""
    shorts = matching_tasks(wanted, [task.short for task in status.tasks])
    tasks = sorted((task for task in status.tasks if task.short in shorts), key=lambda task: task.job != PS_JOB)
    has_ps = any(task.job == PS_JOB for task in status.tasks)
    return Restart(
        cluster=status.cluster,
        tasks=tuple(task.short for task in tasks),
        holders=tuple(
            task.short for task in tasks if task.state in WITH_PROCESS and (task.job == PS_JOB or not has_ps)
        ),
        runs=tuple(run.run for run in status.runs if run.state in ACTIVE),
    )


def carry_out(restart: Restart, *, rolling: bool, grace: float, timeout: float) -> Iterator[ClusterStatus]:
    """Restart the tasks, giving the cluster's status at each change, until all of them are ready.

    Args:
        restart: What to restart.
        rolling: One task after another, each when the one before is ready; else all at once.
        grace: Seconds between TERM and KILL.
        timeout: Seconds to wait at most; when rolling, for each task.

    Raises:
        ClusterError: A task failed for good, or time ran out; further ones have not been touched.
    """
    for group in [[task] for task in restart.tasks] if rolling else [list(restart.tasks)]:
        Connection(restart.cluster).call(Call.RESTART, tasks=group, grace=grace)
        yield from watch_until_ready(restart.cluster, timeout, only=group)
