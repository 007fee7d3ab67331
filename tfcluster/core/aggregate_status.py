"""The status of a whole cluster, put together from those that its hosts tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tfcluster.core.states import TaskState, cluster_state
from tfcluster.core.status import ClusterStatus, HostStatus, TaskStatus
from tfcluster.core.topology import ClusterTopology, Task

#: A host without a status: it cannot be reached, or the cluster does not run there.
HostUnavailable = Literal["unreachable", "down"]


def whole(topology: ClusterTopology, answers: Mapping[str, ClusterStatus | HostUnavailable]) -> ClusterStatus:
    """The status of a cluster: its tasks in the order of the spec, whichever host they are on.

    A task of a host that cannot be reached is unresponsive, for all that can be known; one of a host where the
    cluster is down is stopped.

    Args:
        topology: The cluster.
        answers: What its hosts told, by host in the order of the spec; tasks of a host that is missing are left out.
    """
    told = [answer for answer in answers.values() if isinstance(answer, ClusterStatus)]
    known = {task.task: task for answer in told for task in answer.tasks}
    tasks = [
        known.pop(task.name) if task.name in known else _unseen(task, answers[task.host])
        for task in topology.tasks
        if task.name in known or task.host in answers
    ]
    tasks += known.values()  # of a host that has another topology still
    return ClusterStatus(
        cluster=topology.cluster,
        state=cluster_state([task.state for task in tasks]),
        spec=topology.spec,
        hosts=tuple(row for host, answer in answers.items() for row in _rows(host, answer)),
        tasks=tuple(tasks),
        runs=tuple(run for answer in told for run in answer.runs),
    )


def unseen(task: Task, state: TaskState) -> TaskStatus:
    """The status of a task of which its host has told nothing."""
    return TaskStatus(
        task.name, task.job, task.index, task.host, task.address, state, None, 0, None, None, None, (), None
    )


def _unseen(task: Task, answer: ClusterStatus | HostUnavailable) -> TaskStatus:
    return unseen(task, TaskState.UNRESPONSIVE if answer == "unreachable" else TaskState.STOPPED)


def _rows(host: str, answer: ClusterStatus | HostUnavailable) -> tuple[HostStatus, ...]:
    return answer.hosts if isinstance(answer, ClusterStatus) else (HostStatus(host, answer, None, None),)
