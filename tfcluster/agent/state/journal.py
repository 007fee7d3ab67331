"""The agent's journal: a snapshot and the changes since then in one file, from which the next agent recovers."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.core.states import TaskState
from tfcluster.core.status import LastExit
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.os.files import read_file, remove, write_atomically
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.os.procfs import boot_id
from tfcluster.paths import CODE_LINK, PACKAGE_ROOT
from tfcluster.private_network import PrivateNetwork
from tfcluster.protocol.serialization import (
    NEWER_HINT,
    NewerFormatError,
    check_protocol,
    decode,
    from_stored,
    to_stored,
)
from tfcluster.providers import load_host_side
from tfcluster.providers.earlier import from_earlier
from tfcluster.version import PROTOCOL

# Linux assigns no larger pid (PID_MAX_LIMIT), and counts clock ticks and inodes with 64 bits.
_MAX_PID = 2**22
_MAX_TICKS = 2**63 - 1
# Upper bound, in seconds, of a task's times since 1970 or since the machine's boot: about 3000 years.
_MAX_TIME = 1e11
_MAX_PORT = 65535
# The exceptions that reading a damaged journal raises; a DecodeError is a ValueError.
_UNREADABLE = (OSError, ValueError, RecursionError)
# A process, and the boot in which the file was written, in the journal of any version.
_PROCESS = re.compile(rb'"pid":\s*(\d{1,7}),\s*"start_time":\s*(\d{1,19})\b')
_BOOT = re.compile(rb'"boot":\s*"([^"]*)"')


@dataclass(frozen=True)
class TaskRecord:
    """The record of one task: its process if it has one, and the persistent part of its state machine."""

    process: ProcessHandle | None
    started: float  # Unix time in seconds at which the process was started
    restarts: int  # how often the task was restarted automatically
    # The task's state. While the task has a process and is to run, it is STARTING: whether the process answers is found
    # out again by the next agent's probes, so it is not worth a write.
    state: TaskState
    # Times at which the process exited by itself, in monotonic seconds. That clock continues when an agent dies, is not
    # affected by changes of the date, and stops while the machine is suspended, as the tasks do.
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
    protocol: int = PROTOCOL  # that of the agent that wrote the record
    boot: str = field(default_factory=boot_id)  # of the host, in which the record was written


@dataclass(frozen=True)
class _Change:
    """Each further line of the file: the new record of one task."""

    task: str
    record: TaskRecord  # replaces the earlier one


class JournalError(ClusterError):
    """The journal cannot be read."""

    def __init__(self, path: Path, cause: BaseException) -> None:
        # Whether a newer version of tfcluster has written the journal; otherwise it is damaged.
        self.is_newer = isinstance(cause, NewerFormatError)
        self.cause = _describe_error(cause)
        if self.is_newer:
            super().__init__(f"{path} was {self.cause}", hint=NEWER_HINT)
            return
        super().__init__(
            f"{path} is damaged: {self.cause}",
            hint="`tfcluster down` stops all processes of the cluster and removes the file; then `tfcluster up` starts "
            "it again.",
        )


def _describe_error(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "lists or objects too deep inside each other"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


class Journal:
    """The journal: JSON lines. The first is a snapshot; each further one is the new record of a task.

    A change costs one short `write`, however many tasks there are. It is not synced to the disk: a journal has to
    survive the agent, for which the page cache is enough. After a crash of the machine no process of the cluster is
    alive, and the next agent recognizes that by the boot id, so it does not matter that the latest changes are lost. An
    agent that is killed during a `write` leaves a last line without a newline, which a reader ignores.

    A snapshot replaces the file atomically, and is synced before the rename (0.3 to a few milliseconds on flash), so
    that a crash of the machine does not leave an empty file in place of the topology. It is written when the topology
    changes, by each new agent, and when many changes have accumulated.

    A symbolic link next to it names the code that has written it, which a boot unit starts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unreleased = path.with_suffix(".unreleased")
        self._code = path.with_name(CODE_LINK)
        self._fd: int | None = None  # None if only a snapshot can be written
        self._snapshot_size = self._size = 0

    def write(self, record: Record) -> None:
        """Replace the content of the journal by a snapshot.

        Raises OSError: the file cannot be written; the previous record is unchanged.
        """
        data = json.dumps(to_stored(record)).encode() + b"\n"
        self.close()
        write_atomically(self.path, data, durable=True)
        with suppress(OSError):  # the snapshot names every process that the file named
            remove(self._unreleased)
        self._link_code()
        self._snapshot_size = self._size = len(data)
        with suppress(OSError):  # no descriptor is left: each change is a snapshot
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _link_code(self) -> None:
        new = self._code.with_suffix(".new")
        with suppress(OSError):  # without the link, a boot unit starts the code that was used last on this host
            if not self._code.is_symlink() or os.readlink(self._code) != str(PACKAGE_ROOT):
                new.unlink(missing_ok=True)
                new.symlink_to(PACKAGE_ROOT)
                new.replace(self._code)

    def append(self, tasks: Mapping[str, TaskRecord]) -> bool:
        """Append the new records of some tasks, which are given by the task's name.

        Return False if nothing was done because a snapshot must be written instead: there is none of this agent, the
        file has grown long, or the records cannot be written.
        """
        changes = self._size - self._snapshot_size
        most = max(settings.JOURNAL_CHANGES_MIN_BYTES, settings.JOURNAL_CHANGES_FACTOR * self._snapshot_size)
        if self._fd is None or changes > most:
            return False
        changed = (_Change(name, record) for name, record in tasks.items())
        data = b"".join(json.dumps(asdict(each)).encode() + b"\n" for each in changed)
        is_written = False
        with suppress(OSError):
            is_written = os.write(self._fd, data) == len(data)
        if is_written:
            self._size += len(data)
        else:  # remove what was written in part; then only a snapshot can follow
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            self.close()
        return is_written

    def close(self) -> None:
        """Close the file; the next change has to be a snapshot."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self, host: str | None = None) -> Record | None:
        """Read the record; return None if the file does not exist.

        `host` is the cluster's name for this host: the record must be about its tasks. None skips this check. Raises
        JournalError: the file is damaged, or a newer version of tfcluster has written it. It is left unchanged.
        """
        try:
            return _parse(read_file(self.path, settings.STATE_FILE_MAX_BYTES), host)
        except FileNotFoundError:
            return None
        except _UNREADABLE as error:
            raise JournalError(self.path, error) from error

    def processes(self) -> list[ProcessHandle]:
        """Return the processes that the file names and that still run, even if it cannot be parsed.

        Unlike `read`, this also understands what an older or newer version has written: every version writes a process
        in the same way.
        """
        try:
            data = read_file(self.path, settings.STATE_FILE_MAX_BYTES)
        except (OSError, ValueError):
            return []
        boots = _BOOT.findall(data)
        if boots and boot_id().encode() not in boots:
            return []
        found = {ProcessHandle(int(pid), int(start)) for pid, start in _PROCESS.findall(data)}
        return [process for process in found if process.is_alive()]

    def remove(self) -> None:
        """Remove the journal after the cluster has gone down.

        Raises OSError: a file cannot be removed; the record is unchanged.
        """
        self.close()
        new = self.path.with_name(f"{self.path.name}.new")  # what an agent has left that was killed
        for path in (new, self._unreleased, self._code, self.path):
            remove(path)

    def note_unreleased(self, process: ProcessHandle) -> None:
        """Record that a process in the journal exits without having begun its work, because its agent has died.

        The process itself calls this. It may be dead when the next agent starts, which must not count its exit as one
        of a server then.
        """
        with suppress(OSError):  # the disk is full: the exit counts
            fd = os.open(self._unreleased, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
            os.write(fd, b"%d %d\n" % (process.pid, process.start_time))
            os.close(fd)

    def unreleased(self) -> frozenset[ProcessHandle]:
        """Return the processes that have called `note_unreleased` since the latest snapshot."""
        try:
            lines = read_file(self._unreleased, settings.STATE_FILE_MAX_BYTES).decode().splitlines()
            return frozenset(ProcessHandle(*map(int, line.split())) for line in lines)
        except (OSError, ValueError, TypeError):
            return frozenset()


def _parse(data: bytes, host: str | None) -> Record:
    """Parse the content of a journal.

    `host` is as in `Journal.read`. Raises NewerFormatError: a newer version of tfcluster has written it. Raises
    ValueError: the content is not a valid record. Raises RecursionError: lists or objects are nested too deeply.
    """
    first, _, rest = data.partition(b"\n")
    document = json.loads(first)
    if isinstance(document, dict):
        document["topology"] = from_earlier(document.get("topology"))
    record = from_stored(Record, document)
    check_protocol(document, record.protocol)
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


def _problem_of_host(host: Host) -> str | None:
    try:
        if host.provided is not None:
            load_host_side(host.provided)
    except ClusterError as error:
        return error.message
    return None


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
    yield from (f"topology.hosts: {problem}" for problem in map(_problem_of_host, topology.hosts) if problem)
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
