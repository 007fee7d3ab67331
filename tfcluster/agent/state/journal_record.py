"""The lines of the journal, from which the next agent adopts a cluster: schema, validation, and the way back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.tasks.state_machine import TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TERMINAL_STATES, TaskState
from tfcluster.core.status import LastExit
from tfcluster.core.topology import ClusterTopology
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.os.procfs import boot_id
from tfcluster.private_network import PrivateNetwork
from tfcluster.protocol.serialization import decode
from tfcluster.protocol.stored import from_stored, to_stored

# The format of the journal, see `protocol.stored`: 2 has the version of the protocol.
_FORMAT = 2
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
        state: The task's state. While the task has a process and is to run, it is STARTING: whether the process
            answers is found out again by the next agent's probes, so it is not worth a write.
        exit_times: Times at which the process exited by itself, in monotonic seconds. That clock continues when an
            agent dies, is not affected by changes of the date, and stops while the machine is suspended, as the tasks
            do.
    """

    process: ProcessHandle | None
    started: float  # Unix time in seconds at which the process was started
    restarts: int  # how often the task was restarted automatically
    state: TaskState
    exit_times: tuple[float, ...] = ()
    deadline: float | None = None  # when it is to be restarted, in monotonic seconds; None if it waits for no restart
    last_exit: LastExit | None = None
    restart_pending: bool = False  # whether the task is being stopped in order to be restarted
    generation: int = 0  # that of the topology with which the process was started


@dataclass(frozen=True)
class Record:
    """The content of the journal."""

    topology: ClusterTopology  # without the secret values
    tasks: dict[str, TaskRecord]  # by name
    secrets: Path  # the file that holds the secret values
    next: ClusterTopology | None = None  # replaces this one once the tasks that it removes or changes have stopped
    network: PrivateNetwork | None = None  # the one of the processes; None if they are in the machine's
    protocol: int = 0  # that of the agent that wrote the record; 0 for that of tfcluster 0.1.0


@dataclass(frozen=True)
class _Change:
    """Each further line of the file: the new record of one task."""

    task: str
    record: TaskRecord  # replaces the earlier one


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def encode_snapshot(record: Record) -> bytes:
    """Return the first line of a journal."""
    return _line({**to_stored(record, _FORMAT), "boot": boot_id()})


def encode_changes(tasks: Mapping[str, TaskRecord]) -> bytes:
    """Return further lines of a journal."""
    return b"".join(_line(asdict(_Change(name, record))) for name, record in tasks.items())


def parse(data: bytes, host: str | None) -> Record:
    """Parse the content of a journal.

    `host` is as in `Journal.read`.

    Raises:
        NewerFormatError: A newer version of tfcluster has written it.
        ValueError: The content is not a valid record.
        RecursionError: Lists or objects are nested too deeply.
    """
    first, _, rest = data.partition(b"\n")
    document = json.loads(first)
    record = from_stored(Record, document, _FORMAT)
    tasks = {**record.tasks, **dict(_changed_tasks(rest.split(b"\n")[:-1]))}
    _check(record.topology, tasks, record.secrets, host)
    if record.network is not None and not _is_possible(record.network.holder):
        raise ValueError("network.holder: there can be no such process")
    if decode(str, document.get("boot"), "boot") != boot_id():
        tasks = {name: _after_boot(task) for name, task in tasks.items()}
    return replace(record, tasks=tasks)


def _changed_tasks(lines: Iterable[bytes]) -> Iterator[tuple[str, TaskRecord]]:
    for number, line in enumerate(lines, 2):
        change = decode(_Change, json.loads(line), f"line {number}", lenient=True)
        yield change.task, change.record


def _after_boot(task: TaskRecord) -> TaskRecord:
    """Return a task's record after a reboot: no process has survived, and the monotonic clock has restarted."""
    state = TaskState.READY if task.state is TaskState.STARTING and task.process is not None else task.state
    last_exit = task.last_exit if task.process is None else LastExit("reboot", time.time(), expected=True)
    return replace(task, state=state, process=None, exit_times=(), deadline=None, last_exit=last_exit)


def _check(topology: ClusterTopology, tasks: Mapping[str, TaskRecord], secrets: Path, host: str | None) -> None:
    """Raise a ValueError for a record that no agent can have written, even if each value has the right type.

    `host` is None if the cluster's name for this host is not known.
    """
    for problem in (*_problems_of(topology), *_problems_of_tasks(tasks)):
        raise ValueError(problem)
    names = {task.name for task in topology.tasks if host in (None, task.host)}
    for name in tasks.keys() - names:
        raise ValueError(f"tasks.{name}: there is no such task in the topology")
    if host is not None and (missing := names - tasks.keys()):
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
    if min(asdict(topology.logs).values()) < 1:
        yield "topology.logs: less than one byte or file"
    if topology.lease is not None and topology.lease <= 0:
        yield "topology.lease: not a time to wait"


def _problems_of_tasks(tasks: Mapping[str, TaskRecord]) -> Iterator[str]:
    for name, task in tasks.items():
        process, ended = task.process, task.last_exit
        if process is not None and not _is_possible(process):
            yield f"tasks.{name}.process: there can be no such process"
        times = (task.started, *task.exit_times, task.deadline or 0.0, ended.time if ended else 0.0)
        if any(abs(each) > _MAX_TIME for each in times):
            yield f"tasks.{name}: a time that is too far away"


def _is_possible(process: ProcessHandle) -> bool:
    return 0 < process.pid <= _MAX_PID and 0 <= process.start_time <= _MAX_TICKS


def to_record(task: TaskRuntime) -> TaskRecord:
    """Return the record of a task: what the next agent needs in order to adopt it."""
    machine, state = task.machine, task.machine.state
    if task.process is not None and state in (TaskState.READY, TaskState.UNRESPONSIVE):
        state = TaskState.STARTING
    return TaskRecord(
        process=task.process,
        started=task.started,
        restarts=machine.restarts,
        state=state,
        exit_times=machine.exit_times,
        # While there is a process, the deadline is that of its exit. It is not recorded: the next agent gives the
        # process the whole grace period again.
        deadline=machine.deadline if state is TaskState.BACKING_OFF else None,
        last_exit=task.last_exit,
        restart_pending=machine.restart_pending,
        generation=task.generation,
    )


def restore(
    machine: TaskStateMachine, record: TaskRecord, now: float, probes: int
) -> tuple[TaskStateMachine, TaskEvent | None]:
    """Restore a task's state machine from its record.

    `now` is in monotonic seconds. `probes` is how many health checks there were time for since the task's process was
    started. Return the restored machine, and the event that must be dispatched to it next; None for no event.
    """
    machine = replace(machine, state=record.state, restarts=record.restarts, exit_times=record.exit_times)
    if record.state in TERMINAL_STATES:
        return machine, None
    if record.state is TaskState.BACKING_OFF:
        return replace(machine, deadline=now if record.deadline is None else record.deadline), None
    if record.state is TaskState.STOPPING and record.process is None:
        return replace(machine, state=TaskState.STOPPED), TaskEvent.START if record.restart_pending else None
    if record.state is TaskState.STOPPING:
        # The process needs another signal, and the machine requests that only for a task that is running.
        event = TaskEvent.RESTART if record.restart_pending else TaskEvent.STOP
        return replace(machine, state=TaskState.STARTING), event
    if record.process is None:
        return machine, TaskEvent.UNSTARTED if record.state is TaskState.STARTING else TaskEvent.FAILED_EXIT
    # The time that a server has to start does not begin again with each agent. One that is older than that counts as
    # ready until its probes fail.
    if probes < settings.FAILED_PROBES_MAX_STARTING - settings.FAILED_PROBES_MAX:
        return replace(machine, state=TaskState.STARTING, failed_probes=probes), None
    return replace(machine, state=TaskState.READY), None


def drop_unreleased(record: TaskRecord, unreleased: Callable[[], Collection[ProcessHandle]]) -> TaskRecord:
    """Return a task's record without its process if the earlier agent died before it released the process.

    Such a process exits by itself. It may not have done so yet, so it is killed here too. It is recognized by its
    session: a server first creates a session of its own, and a process that was not released is still in the session
    of its agent.

    `unreleased` returns the processes that have noted that they exit because they were not released.
    """
    process = record.process
    if record.state is not TaskState.STARTING or process is None or process.leads_session():
        return record
    if process.is_alive():
        process.kill()
    elif process not in unreleased():  # it was released, and has exited since
        return record
    return replace(record, process=None)
