"""The schema of the journal: the records from which the next agent adopts a cluster, and their validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfcluster.core.states import TaskState
from tfcluster.core.status import LastExit
from tfcluster.core.topology import ClusterTopology
from tfcluster.process_handle import ProcessHandle

# Linux assigns no larger pid (PID_MAX_LIMIT), and counts clock ticks and inodes with 64 bits.
_MAX_PID = 2**22
_MAX_TICKS = 2**63 - 1
# Upper bound, in seconds, of a task's times since 1970 or since the machine's boot: about 3000 years.
_MAX_TIME = 1e11
_MAX_PORT = 65535


@dataclass(frozen=True)
class TaskRecord:
    """The record of one task: its process if it has one, and the persistent part of its state machine.

    Attributes:
        process: The task's process; None if it has none.
        started: Unix time in seconds at which the process was started.
        restarts: How often the task was restarted automatically.
        state: The task's state.
        ends: Times at which the process exited by itself, in monotonic seconds. That clock continues when an agent
            dies, is not affected by changes of the date, and stops while the machine is suspended, as the tasks do.
        wake_at: When the task is to be restarted, in monotonic seconds; None if it is not waiting for a restart.
        last_exit: How the task's latest process exited.
        again: Whether the task is being stopped in order to be restarted.
        generation: The generation of the topology with which the process was started.
    """

    process: ProcessHandle | None
    started: float
    restarts: int
    state: TaskState
    ends: tuple[float, ...] = ()
    wake_at: float | None = None
    last_exit: LastExit | None = None
    again: bool = False
    generation: int = 0


@dataclass(frozen=True)
class Record:
    """The content of the journal.

    Attributes:
        topology: The cluster, without the secret values.
        tasks: The record of each task, by name.
        secrets: The file that holds the secret values.
        next: The topology that replaces this one as soon as the tasks that it removes or changes have stopped.
    """

    topology: ClusterTopology
    tasks: dict[str, TaskRecord]
    secrets: Path
    next: ClusterTopology | None = None


def check(topology: ClusterTopology, tasks: Mapping[str, TaskRecord], secrets: Path, host: str | None) -> None:
    """Reject a record that no agent can have written, even if each value has the right type.

    Args:
        topology: As in Record.
        tasks: As in Record.
        secrets: As in Record.
        host: The cluster's name for this host; None if it is not known.

    Raises:
        ValueError: The record is not valid.
    """
    for problem in (*_problems_of(topology), *_problems_of_tasks(tasks)):
        raise ValueError(problem)
    known = {task.name for task in topology.tasks if host in (None, task.host)}
    for name in tasks.keys() - known:
        raise ValueError(f"tasks.{name}: there is no such task in the topology")
    if host is not None and (missing := known - tasks.keys()):
        raise ValueError(f"tasks.{min(missing)}: missing")
    # The agent removes this file when the cluster goes down, so it must be a file that an agent wrote.
    if not secrets.is_absolute() or secrets.suffix != ".secrets":
        raise ValueError(f"secrets: not a file with secret values: {str(secrets)!r}")


def _problems_of(topology: ClusterTopology) -> Iterator[str]:
    names = [task.name for task in topology.tasks]
    if not names:
        yield "topology.tasks: empty"
    if len(set(names)) < len(names):
        yield "topology.tasks: two tasks of one name"
    for index, task in enumerate((*topology.tasks, *topology.reserved)):
        if task.port is not None and not 0 < task.port <= _MAX_PORT:
            yield f"topology.tasks.{index}.port: {task.port} is not a port"
        if any(not name or "=" in name or "\0" in name + value for name, value in task.env.items()):
            yield f"topology.tasks.{index}.env: not an environment"
    if topology.logs.size < 1 or topology.logs.count < 1:
        yield "topology.logs: less than one byte or file"
    if topology.lease is not None and topology.lease <= 0:
        yield "topology.lease: not a time to wait"


def _problems_of_tasks(tasks: Mapping[str, TaskRecord]) -> Iterator[str]:
    for name, task in tasks.items():
        process, ended = task.process, task.last_exit
        if process is not None and not (0 < process.pid <= _MAX_PID and 0 <= process.start_time <= _MAX_TICKS):
            yield f"tasks.{name}.process: there can be no such process"
        times = (task.started, *task.ends, task.wake_at or 0.0, ended.time if ended else 0.0)
        if any(abs(time) > _MAX_TIME for time in times):
            yield f"tasks.{name}: a time that is too far away"
