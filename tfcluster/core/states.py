"""The states of a task, a run and a cluster, and named sets of states."""

from __future__ import annotations

from enum import StrEnum


class HostState(StrEnum):
    """The state of one host of a cluster."""

    UP = "up"  # its agent answers
    UNREACHABLE = "unreachable"  # it cannot be reached, or its agent does not answer
    DOWN = "down"  # the cluster is not running there


class TaskState(StrEnum):
    """The state of one task (one TensorFlow server)."""

    STARTING = "starting"  # its server was started, and has not answered yet
    READY = "ready"  # its server answers
    UNRESPONSIVE = "unresponsive"  # its server does not answer, or its host cannot be reached
    BACKING_OFF = "backing-off"  # its server will be started again: after a delay, or when nothing prevents it any more
    FAILED = "failed"  # its server has ended, and is not started again, by the policy of restarts or its limit
    STOPPING = "stopping"  # its server was told to end
    STOPPED = "stopped"  # it has no server, and gets none until a command starts one


#: States in which the task has a process (or one that has exited, which its agent has not noticed yet).
HAS_PROCESS = frozenset({TaskState.STARTING, TaskState.READY, TaskState.UNRESPONSIVE, TaskState.STOPPING})
#: States in which the task is supposed to run.
DESIRED_RUNNING = frozenset({TaskState.STARTING, TaskState.READY, TaskState.UNRESPONSIVE, TaskState.BACKING_OFF})
#: States in which the task has no process and does not get one automatically.
TERMINAL_STATES = frozenset({TaskState.FAILED, TaskState.STOPPED})


class RunState(StrEnum):
    """The state of one run of a program."""

    QUEUED = "queued"  # it was submitted, and its process has not started yet
    RUNNING = "running"  # its program runs
    SUCCEEDED = "succeeded"  # its program has ended without an error
    FAILED = "failed"  # its program has ended with an error, or was ended because of a lost task or a time limit
    CANCELLED = "cancelled"  # a person has ended it, by `cancel`, `down` or Ctrl-C
    UNREADABLE = "unreadable"  # its record is damaged, or a newer version of tfcluster has written it


#: States of a run that has not finished.
ACTIVE_RUN_STATES = frozenset({RunState.QUEUED, RunState.RUNNING})
#: States of a run that has surely finished: one whose record is unreadable may be active.
ENDED_RUN_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})


class ClusterState(StrEnum):
    """The state of a whole cluster, as `status` reports it."""

    PENDING = "pending"  # its job of Slurm waits in the queue
    RUNNING = "running"  # every task is ready; or a `launch` has started it, and all its hosts answer
    STARTING = "starting"  # some tasks are starting, and all others are ready
    DEGRADED = "degraded"  # some tasks are not ready
    FAILED = "failed"  # no task has a server or gets one
    STOPPED = "stopped"  # all tasks were stopped by a command


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
