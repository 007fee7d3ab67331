"""Restart tasks: determine which variables and runs are lost, then restart all at once or one by one (rolling)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.readiness import watch_until_ready
from tfcluster.client.rpc.parallel import call_hosts, combine_errors, map_hosts, unreachable
from tfcluster.client.status import take_snapshot
from tfcluster.core.plan import lost_run
from tfcluster.core.states import ACTIVE_RUN_STATES, HAS_PROCESS
from tfcluster.core.status import ClusterStatus
from tfcluster.core.topology import PS_JOB, ClusterTopology, matching_tasks
from tfcluster.protocol.api.cluster import RestartRequest
from tfcluster.protocol.api.logs import LogLine
from tfcluster.protocol.api.runs import FailingRunsRequest


@dataclass(frozen=True)
class RestartPlan:
    """The plan of a restart.

    `holders` are those of the tasks that hold variables, which are lost with their processes: the ps, or every task of
    a cluster without a ps, where any task can hold variables. A task without a process has nothing to lose.
    """

    cluster: str
    tasks: tuple[str, ...]  # short names, the ps first, so that the other tasks then connect to the new ps
    holders: tuple[str, ...]  # short names
    runs: tuple[str, ...]  # the active runs that fail if they use one of the tasks
    hosts: Mapping[str, str]  # by the short names of the tasks

    @property
    def losses(self) -> tuple[str, ...]:
        """Return descriptions of everything that the restart loses."""
        variables = [f"the variables of {', '.join(self.holders)}"] * bool(self.holders)
        return (*variables, *(f"run {lost_run(run, is_certain=False)}" for run in self.runs))


def plan_restart(cluster: Cluster, names: Sequence[str]) -> tuple[RestartPlan, ClusterTopology]:
    """Plan a restart of tasks without changing anything.

    Names are tasks or jobs, as `worker:1` or `worker`; without names, it is all tasks.
    """
    snapshot = take_snapshot(cluster)
    restart = restart_of(snapshot.status, names)
    if any(run.state in ACTIVE_RUN_STATES for run in snapshot.status.runs):
        # Any host may lead some of the runs, if the host of the head task was lost before.
        request = FailingRunsRequest(restart.tasks)
        replies, _ = call_hosts(cluster, snapshot.statuses, request, settings.HOST_TIMEOUT_SECONDS)
        runs = tuple(run for reply in replies.values() for run in reply.runs)
        restart = replace(restart, runs=runs)
    hosts = restart.hosts.values()
    if errors := {host: error for host, error in snapshot.errors.items() if host in hosts}:
        raise unreachable(cluster, errors)
    return restart, snapshot.topology


def restart_of(status: ClusterStatus, names: Sequence[str]) -> RestartPlan:
    """Plan a restart of tasks of a cluster without active runs; `names` and the errors are those of `plan_restart`."""
    short_names = matching_tasks(names, [task.short for task in status.tasks])
    tasks = sorted((task for task in status.tasks if task.short in short_names), key=lambda task: task.job != PS_JOB)
    has_ps = any(task.job == PS_JOB for task in status.tasks)
    return RestartPlan(
        cluster=status.cluster,
        tasks=tuple(task.short for task in tasks),
        holders=tuple(task.short for task in tasks if task.state in HAS_PROCESS and (task.job == PS_JOB or not has_ps)),
        runs=(),
        hosts={task.short: task.host for task in tasks},
    )


def restart_tasks(
    cluster: Cluster,
    topology: ClusterTopology,
    restart: RestartPlan,
    *,
    rolling: bool,
    grace: float,
    timeout: float,
    show_line: Callable[[LogLine], None],
) -> Iterator[ClusterStatus]:
    """Restart the tasks and wait until all of them are ready; yield the cluster's status at each change.

    Args:
        rolling: Restart one task at a time, waiting for each to become ready; otherwise restart all at once.
        grace: Seconds between SIGTERM and SIGKILL.
        timeout: The maximum number of seconds to wait; with `rolling`, for each task.
        show_line: Called with what the tasks print that are not ready after some seconds.

    Raises:
        ClusterError: A task failed permanently, or the wait timed out; with `rolling`, the tasks after it were not
            restarted.
    """
    for group in [[task] for task in restart.tasks] if rolling else [list(restart.tasks)]:
        request_restart(cluster, restart.hosts, group, grace)
        yield from watch_until_ready(cluster, topology, timeout, group, restart.tasks, show_line)


def request_restart(cluster: Cluster, hosts: Mapping[str, str], tasks: Collection[str], grace: float) -> None:
    """Have the agents restart tasks, on all their hosts in parallel.

    An error of one host is raised when the other hosts have restarted their tasks.
    """
    by_host: dict[str, list[str]] = {}
    for task in tasks:
        by_host.setdefault(hosts[task], []).append(task)
    requests = {host: RestartRequest(tuple(names), grace) for host, names in by_host.items()}
    _, errors = map_hosts(
        requests, lambda host: cluster.connect(host).call(requests[host]), settings.HOST_TIMEOUT_SECONDS
    )
    if errors:
        raise combine_errors(cluster, errors)
