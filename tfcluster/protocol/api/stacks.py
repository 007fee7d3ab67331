"""The methods about what processes do now: the Python stacks of a run, and the threads of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from tfcluster.core.stacks import ProcessStacks
from tfcluster.core.states import TaskState
from tfcluster.protocol.api import Method, Request


@dataclass(frozen=True)
class RunStacksReply:
    """The reply to `RunStacksRequest`, as `stack -o json` has it."""

    run: str
    host: str  # the host that the processes are on
    # The processes of the run's program that execute Python; none if it has not started yet.
    processes: tuple[ProcessStacks, ...]


@dataclass(frozen=True)
class RunStacksRequest(Request[NoReturn, RunStacksReply], method=Method.RUN_STACKS, is_slow=True):
    """Return the Python stacks of a run's program, which goes on."""

    run: str  # the run's id, or a unique prefix of it


@dataclass(frozen=True)
class Thread:
    """A thread of a server."""

    tid: int  # the number that the kernel has for it
    name: str
    state: str  # its state as the kernel names it: R runs, S sleeps, D waits for a device, T is stopped by a signal
    waits_in: str  # the function of the kernel in which it waits; empty if it runs, or the kernel does not tell


@dataclass(frozen=True)
class TaskThreadsReply:
    """The reply to `TaskThreadsRequest`, as `stack -o json` has it."""

    task: str
    host: str
    state: TaskState
    pid: int | None  # the pid of its server; None if it has none
    problem: str  # why it cannot serve; empty if it has answered a probe now
    hint: str  # what to type about the problem
    threads: tuple[Thread, ...]  # the threads of its server
    log: tuple[str, ...]  # the last lines that it has printed


@dataclass(frozen=True)
class TaskThreadsRequest(Request[NoReturn, TaskThreadsReply], method=Method.TASK_THREADS, is_slow=True):
    """Return what the server of a task on the agent's host does, as far as the kernel knows: it executes no Python."""

    task: str
