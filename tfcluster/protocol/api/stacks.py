"""The methods about what processes do now: the Python stacks of a run, and the threads of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from tfcluster.core.stacks import ProcessStacks
from tfcluster.core.states import TaskState
from tfcluster.protocol.api import Method, Request


@dataclass(frozen=True)
class RunStacksReply:
    """The reply to `RunStacksRequest`, as `stack -o json` has it.

    Attributes:
        run: The run's id.
        host: The host that the processes are on.
        processes: The processes of the run's program that execute Python; none if it has not started yet.
    """

    run: str
    host: str
    processes: tuple[ProcessStacks, ...]


@dataclass(frozen=True)
class RunStacksRequest(Request[NoReturn, RunStacksReply], method=Method.RUN_STACKS, is_slow=True):
    """Return the Python stacks of a run's program, which continues.

    Attributes:
        run: The run's id, or a unique prefix of it.
    """

    run: str


@dataclass(frozen=True)
class Thread:
    """A thread of a server.

    Attributes:
        tid: Its thread id in the kernel.
        name: Its name.
        state: Its state as the kernel names it: R runs, S sleeps, D waits for a device, T is stopped by a signal.
        waits_in: The kernel function in which it waits; empty if it runs, or the kernel does not say.
    """

    tid: int
    name: str
    state: str
    waits_in: str


@dataclass(frozen=True)
class TaskThreadsReply:
    """The reply to `TaskThreadsRequest`, as `stack -o json` has it.

    Attributes:
        task: The name of the task.
        host: The host of the task.
        state: The state of the task.
        pid: The pid of its server; None if it has none.
        problem: Why it cannot serve; empty if it has answered a probe now.
        hint: What to type about the problem.
        threads: The threads of its server.
        log: The last lines that it has printed.
    """

    task: str
    host: str
    state: TaskState
    pid: int | None
    problem: str
    hint: str
    threads: tuple[Thread, ...]
    log: tuple[str, ...]


@dataclass(frozen=True)
class TaskThreadsRequest(Request[NoReturn, TaskThreadsReply], method=Method.TASK_THREADS, is_slow=True):
    """Return what the server of a task on the agent's host does, as far as the kernel knows: it executes no Python.

    Attributes:
        task: The short name of the task.
    """

    task: str
