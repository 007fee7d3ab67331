"""The methods about what processes do now: the Python stacks of a run, the threads of a task, and traces of servers."""

from __future__ import annotations

from typing import NoReturn

from tfcluster.core.stacks import ProcessStacks
from tfcluster.core.states import TaskState
from tfcluster.protocol.api import Request
from tfcluster.records import record_class


@record_class(frozen=True)
class TracePart:
    """The event of `ProfileRequest`: a part of a task's trace, in the order of its parts."""

    task: str  # the short name of the task
    data: str  # the bytes of the part, in base64


@record_class(frozen=True)
class ProfileReply:
    """The reply to `ProfileRequest`."""

    idle: tuple[str, ...]  # the short names of the tasks on which nothing has run meanwhile, whose traces are left out
    failures: dict[str, str]  # why there is no trace of a task, by its short name


@record_class(frozen=True)
class ProfileRequest(Request[TracePart, ProfileReply], method="profile", is_slow=True):
    """Capture traces of tasks, all at the same time."""

    tasks: tuple[str, ...]  # the short names of the tasks, which are on this host
    seconds: float  # how long to trace


@record_class(frozen=True)
class RunStacksReply:
    """The reply to `RunStacksRequest`, as `stack -o json` has it."""

    run: str  # the run's id
    host: str  # the host that the processes are on
    # The processes of the run's program that execute Python; none if it has not started yet.
    processes: tuple[ProcessStacks, ...]


@record_class(frozen=True)
class RunStacksRequest(Request[NoReturn, RunStacksReply], method="run-stacks", is_slow=True):
    """Return the Python stacks of a run's program, which continues."""

    run: str  # the run's id, or a unique prefix of it


@record_class(frozen=True)
class Thread:
    """A thread of a server."""

    tid: int  # its thread id in the kernel
    name: str  # its name
    state: str  # its state as the kernel names it: R runs, S sleeps, D waits for a device, T is stopped by a signal
    waits_in: str  # the kernel function in which it waits; empty if it runs, or the kernel does not say


@record_class(frozen=True)
class TaskThreadsReply:
    """The reply to `TaskThreadsRequest`, as `stack -o json` has it."""

    task: str  # the name of the task
    host: str  # the host of the task
    state: TaskState  # the state of the task
    pid: int | None  # the pid of its server; None if it has none
    problem: str  # why it cannot serve; empty if it has answered a probe now
    hint: str  # what to type about the problem
    threads: tuple[Thread, ...]  # the threads of its server
    log: tuple[str, ...]  # the last lines that it has printed


@record_class(frozen=True)
class TaskThreadsRequest(Request[NoReturn, TaskThreadsReply], method="task-threads", is_slow=True):
    """Return what the server of a task on the agent's host does, as far as the kernel knows: it executes no Python."""

    task: str  # the short name of the task
