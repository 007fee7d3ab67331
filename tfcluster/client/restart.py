"""Restart tasks: determine which variables and runs are lost, then restart all at once or one by one (rolling)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.client.wait import watch_until_ready
from tfcluster.core.states import ACTIVE_RUN_STATES, HAS_PROCESS
from tfcluster.core.status import ClusterStatus
from tfcluster.core.topology import PS_JOB, ClusterTopology, matching_tasks
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.tasks import RestartRequest, StatusRequest


@dataclass(frozen=True)
class Restart:
    """The plan of a restart.

    Attributes:
        cluster: The cluster's name.
        tasks: Short names of the tasks to restart, the ps first, so that the other tasks then connect to the new ps.
        holders: Those of the tasks that hold variables, which are lost with their processes: the ps, or every task of
            a cluster without a ps, where any task can hold variables. A task without a process has nothing to lose.
        runs: The active runs; those that compute on one of the tasks fail.
        hosts: The host of each task, by its short name; empty for a cluster on this machine only.
        topology: The cluster's topology; None for a cluster on this machine only.
    """

    cluster: str
    tasks: tuple[str, ...]
    holders: tuple[str, ...]
    runs: tuple[str, ...]
    hosts: Mapping[str, str] = field(default_factory=dict)
    topology: ClusterTopology | None = None


def plan_restart(cluster: Cluster, wanted: Sequence[str]) -> Restart:
    """Plan a restart of tasks without changing anything.

    Args:
        cluster: The cluster.
        wanted: Tasks or jobs, as `worker:1` or `worker`; none for all tasks.

    Returns:
        The plan.

    Raises:
        ClusterError: The cluster is not running, it has no such task, or the host of one cannot be reached.
    """
    if cluster.is_here:
        return restart_of(cluster.leader().call(StatusRequest()), wanted)
    from tfcluster.client.snapshot import look, unreachable

    found = look(cluster)
    restart = restart_of(found.status, wanted)
    hosts = {task.short: task.host for task in found.status.tasks if task.short in restart.tasks}
    if away := {host: error for host, error in found.away.items() if host in hosts.values()}:
        raise unreachable(cluster.name, away)
    return replace(restart, hosts=hosts, topology=found.topology)


def restart_of(status: ClusterStatus, wanted: Sequence[str]) -> Restart:
    """Plan a restart of tasks of a cluster with this status; `wanted` and the errors are those of `plan_restart`."""
    shorts = matching_tasks(wanted, [task.short for task in status.tasks])
    tasks = sorted((task for task in status.tasks if task.short in shorts), key=lambda task: task.job != PS_JOB)
    has_ps = any(task.job == PS_JOB for task in status.tasks)
    return Restart(
        cluster=status.cluster,
        tasks=tuple(task.short for task in tasks),
        holders=tuple(task.short for task in tasks if task.state in HAS_PROCESS and (task.job == PS_JOB or not has_ps)),
        runs=tuple(run.run for run in status.runs if run.state in ACTIVE_RUN_STATES),
    )


def carry_out(
    cluster: Cluster, restart: Restart, *, rolling: bool, grace: float, timeout: float
) -> Iterator[ClusterStatus]:
    """Restart the tasks and wait until all of them are ready.

    Args:
        cluster: The cluster.
        restart: The plan.
        rolling: Restart one task at a time, waiting for each to become ready; otherwise restart all at once.
        grace: Seconds between SIGTERM and SIGKILL.
        timeout: The maximum number of seconds to wait; with `rolling`, for each task.

    Yields:
        The cluster's status at each change.

    Raises:
        ClusterError: A task failed permanently, or the wait timed out; with `rolling`, the tasks after it were not
            restarted.
    """
    for group in [[task] for task in restart.tasks] if rolling else [list(restart.tasks)]:
        if cluster.is_here:
            cluster.leader().call(RestartRequest(tuple(group), grace))
        else:
            _restart_everywhere(cluster, restart.hosts, group, grace)
        yield from watch_until_ready(cluster, restart.topology, timeout, only=group, among=restart.tasks)


def _restart_everywhere(cluster: Cluster, hosts: Mapping[str, str], tasks: Collection[str], grace: float) -> None:
    """Restart tasks on all their hosts in parallel.

    Raises:
        ClusterError: A host failed to restart its tasks; the other hosts have restarted theirs.
    """
    by_host: dict[str, list[str]] = {}
    for task in tasks:
        by_host.setdefault(hosts[task], []).append(task)

    def restart_on(host: str) -> None:
        cluster.connect(host).call(RestartRequest(tuple(by_host[host]), grace))

    _, wrong = split(map_hosts(by_host, restart_on, settings.RESTART_TIMEOUT_SECONDS))
    if wrong:
        from tfcluster.client.snapshot import lines_of

        raise ClusterError(
            "\n".join(lines_of(wrong)),
            hint=" ".join(dict.fromkeys(error.hint for error in wrong.values() if error.hint)),
            exit_code=max(error.exit_code for error in wrong.values()),
        )
