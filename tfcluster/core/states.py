"""The words for the state of a task, a run and a cluster, and the named sets of them."""

from __future__ import annotations

from enum import Enum


class TaskState(str, Enum):
    """State of one task (one TensorFlow server)."""

    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    BACKING_OFF = "backing-off"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


#: The task has a process, as far as its agent has noted; of one that has just ended it has not yet.
HAS_PROCESS = frozenset({TaskState.STARTING, TaskState.READY, TaskState.UNRESPONSIVE, TaskState.STOPPING})
#: The task is meant to be up.
DESIRED_RUNNING = frozenset({TaskState.STARTING, TaskState.READY, TaskState.UNRESPONSIVE, TaskState.BACKING_OFF})
#: The task has no process and gets none by itself.
TERMINAL_STATES = frozenset({TaskState.FAILED, TaskState.STOPPED})


class RunState(str, Enum):
    """State of one run of a program."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: The run goes on.
ACTIVE = frozenset({RunState.QUEUED, RunState.RUNNING})


class ClusterState(str, Enum):
    """State of a whole cluster, as `status` says it."""

    RUNNING = "running"
    STARTING = "starting"
    DEGRADED = "degraded"
    FAILED = "failed"
    STOPPED = "stopped"


def cluster_state(tasks: list[TaskState]) -> ClusterState:
    """The state of a cluster from the states of its tasks.

    Every task ready is running, none with a process or a chance of one is failed (or stopped when all were
    stopped on purpose), some on their way up with nothing wrong is starting, all else is degraded.
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
