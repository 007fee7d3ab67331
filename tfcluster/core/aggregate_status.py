"""Aggregate the status reports of the hosts of a cluster into the status of the whole cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tfcluster.core.states import TaskState, cluster_state
from tfcluster.core.status import ClusterStatus, HostStatus, TaskStatus
from tfcluster.core.topology import ClusterTopology, Task

#: Why a host has no status: it is unreachable, or the cluster is not running there.
HostUnavailable = Literal["unreachable", "down"]


def whole(topology: ClusterTopology, answers: Mapping[str, ClusterStatus | HostUnavailable]) -> ClusterStatus:
    """Aggregate the status of a cluster: its tasks in the order of the spec, on all hosts.

    A task on an unreachable host is reported as unresponsive, because nothing more is known; a task on a host where
    the cluster is down is reported as stopped.

    Args:
        topology: The topology of the cluster.
        answers: The status of each host, or why it has none, by host in the order of the spec. Tasks on a host that
            is missing here are omitted.
    """
    told = [answer for answer in answers.values() if isinstance(answer, ClusterStatus)]
    known = {task.task: task for answer in told for task in answer.tasks}
    tasks = [
        known.pop(task.name) if task.name in known else _unseen(task, answers[task.host])
        for task in topology.tasks
        if task.name in known or task.host in answers
    ]
    tasks += known.values()  # tasks of a host that still has another topology
    return ClusterStatus(
        cluster=topology.cluster,
        state=cluster_state([task.state for task in tasks]),
        spec=topology.spec,
        hosts=tuple(row for host, answer in answers.items() for row in _rows(host, answer)),
        tasks=tuple(tasks),
        runs=tuple(run for answer in told for run in answer.runs),
    )


def unseen(task: Task, state: TaskState) -> TaskStatus:
    """Return the status of a task about which its host has reported nothing."""
    return TaskStatus(
        task.name, task.job, task.index, task.host, task.address, state, None, 0, None, None, None, (), None
    )


def _unseen(task: Task, answer: ClusterStatus | HostUnavailable) -> TaskStatus:
    return unseen(task, TaskState.UNRESPONSIVE if answer == "unreachable" else TaskState.STOPPED)


def _rows(host: str, answer: ClusterStatus | HostUnavailable) -> tuple[HostStatus, ...]:
    return answer.hosts if isinstance(answer, ClusterStatus) else (HostStatus(host, answer, None, None),)
