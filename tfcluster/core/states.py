"""The states of a task, a run and a cluster, and named sets of states."""

from __future__ import annotations

from enum import StrEnum


class TaskState(StrEnum):
    """The state of one task (one TensorFlow server)."""

    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    BACKING_OFF = "backing-off"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


#: States in which the task has a process (or one that has exited, which its agent has not noticed yet).
HAS_PROCESS = frozenset({TaskState.STARTING, TaskState.READY, TaskState.UNRESPONSIVE, TaskState.STOPPING})
#: States in which the task is supposed to run.
DESIRED_RUNNING = frozenset({TaskState.STARTING, TaskState.READY, TaskState.UNRESPONSIVE, TaskState.BACKING_OFF})
#: States in which the task has no process and does not get one automatically.
TERMINAL_STATES = frozenset({TaskState.FAILED, TaskState.STOPPED})


class RunState(StrEnum):
    """The state of one run of a program."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNREADABLE = "unreadable"  # its record is damaged, or a newer version of tfcluster has written it


#: States of a run that has not finished.
ACTIVE_RUN_STATES = frozenset({RunState.QUEUED, RunState.RUNNING})
#: States of a run that has surely finished: one whose record is unreadable may be active.
ENDED_RUN_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})


class ClusterState(StrEnum):
    """The state of a whole cluster, as `status` reports it."""

    PENDING = "pending"  # its job of Slurm waits in the queue
    RUNNING = "running"
    STARTING = "starting"
    DEGRADED = "degraded"
    FAILED = "failed"
    STOPPED = "stopped"


def cluster_state(tasks: list[TaskState]) -> ClusterState:
    """Return the state of a cluster, derived from the states of its tasks.

    The cluster is running if every task is ready; stopped if all tasks were stopped on purpose; failed if no task
    has a process or will get one; starting if some tasks are starting and all others are ready; otherwise degraded.
    """
    if all(state is TaskState.READY for state in tasks):
        return ClusterState.RUNNING
    if all(state is TaskState.STOPPED for state in tasks):
        return ClusterState.STOPPED
    if all(state in TERMINAL_STATES for state in tasks):
        return ClusterState.FAILED
    if all(state in {TaskState.STARTING, TaskState.READY} for state in tasks):
        return ClusterState.STARTING
    return ClusterState.DEGRADED
