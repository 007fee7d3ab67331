"""The agent's journal: a snapshot and the changes since then in one file, from which the next agent recovers."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.state.journal_record import Record, TaskRecord, encode_changes, encode_snapshot, parse
from tfcluster.errors import ClusterError
from tfcluster.os.atomic_file import read_file, remove, remove_unless_file, write_atomically, write_file
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.os.procfs import boot_id
from tfcluster.paths import CODE_LINK, PACKAGE_ROOT
from tfcluster.protocol.stored import NEWER_HINT, NewerFormatError

# The exceptions that reading a damaged journal raises; a DecodeError is a ValueError.
_UNREADABLE = (OSError, ValueError, RecursionError)
# A process, and the boot in which the file was written, in the journal of any version.
_PROCESS = re.compile(rb'"pid":\s*(\d{1,7}),\s*"start_time":\s*(\d{1,19})\b')
_BOOT = re.compile(rb'"boot":\s*"([^"]*)"')


class JournalError(ClusterError):
    """The journal cannot be read.

    Attributes:
        is_newer: Whether a newer version of tfcluster has written the journal; otherwise it is damaged.
    """

    def __init__(self, path: Path, cause: BaseException) -> None:
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

    The same is written to a copy, for the case that something else damages the file. The copy is written after the
    file: it contains the same bytes or, after a kill, the beginning of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._copy = path.with_suffix(".copy")
        self._unreleased = path.with_suffix(".unreleased")
        self._code = path.with_name(CODE_LINK)
        self._fds: list[int] = []  # the file and its copy; empty if only a snapshot can be written
        self._snapshot_size = self._size = 0

    def write(self, record: Record) -> None:
        """Replace the content of the journal by a snapshot.

        Raises:
            OSError: The file cannot be written; the previous record is unchanged.
        """
        data = encode_snapshot(record)
        self.close()
        remove_unless_file(self.path)
        write_atomically(self.path, data, durable=True)
        try:
            write_file(self._copy, data)
        except OSError:
            with suppress(OSError):  # no copy is better than an outdated one
                remove(self._copy)
        with suppress(OSError):  # the snapshot names every process that the file named
            remove(self._unreleased)
        self._link_code()
        self._snapshot_size = self._size = len(data)
        with suppress(OSError):  # no descriptor is left, or the copy could not be written: each change is a snapshot
            for path in (self.path, self._copy):
                self._fds.append(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

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
        file was removed, or it has grown long.

        Raises:
            OSError: The records cannot be written; the journal is unchanged.
        """
        changes = self._size - self._snapshot_size
        if (
            changes > max(settings.JOURNAL_CHANGES_MIN_BYTES, settings.JOURNAL_CHANGES_FACTOR * self._snapshot_size)
            or not self._is_in_place()
        ):
            return False
        data = encode_changes(tasks)
        for fd in self._fds:
            try:
                if os.write(fd, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            except OSError:
                self._truncate()
                raise
        self._size += len(data)
        return True

    def _truncate(self) -> None:
        """Remove a change that was written in part; then only a snapshot can follow."""
        for fd in self._fds:
            with suppress(OSError):
                os.ftruncate(fd, self._size)
        self.close()

    def _is_in_place(self) -> bool:
        """Return whether the files that this agent has opened are still those at their paths."""
        try:
            return len(self._fds) == 2 and all(
                os.path.samestat(os.fstat(fd), os.stat(path))
                for fd, path in zip(self._fds, (self.path, self._copy), strict=True)
            )
        except OSError:
            return False

    def close(self) -> None:
        """Close the files; the next change has to be a snapshot."""
        while self._fds:
            os.close(self._fds.pop())

    def read(self, host: str | None = None) -> Record | None:
        """Read the record, from the copy if the file is damaged; return None if the file does not exist.

        `host` is the cluster's name for this host: the record must be about its tasks. None skips this check.

        Raises:
            JournalError: Both the file and the copy are damaged, or a newer version of tfcluster has written one of
                them. They are left unchanged.
        """
        copy = None
        with suppress(OSError, ValueError):
            copy = read_file(self._copy, settings.STATE_FILE_MAX_BYTES)
        try:
            data = read_file(self.path, settings.STATE_FILE_MAX_BYTES)
            if copy is not None and copy.startswith(data):  # the end of the file was cut off
                data = copy
            return parse(data, host)
        except FileNotFoundError:
            return self._parse_lone_copy(copy, host)
        except _UNREADABLE as error:
            cause: BaseException = error
            if copy is not None and not isinstance(error, NewerFormatError):  # then the copy can be an older one
                try:
                    return parse(copy, host)
                except _UNREADABLE as other:
                    cause = other if isinstance(other, NewerFormatError) else error
            raise JournalError(self.path, cause) from cause

    def _parse_lone_copy(self, copy: bytes | None, host: str | None) -> Record | None:
        """Return the record of a copy whose file was deleted; None unless a task that it names still runs.

        When a cluster goes down, `remove` removes the copy first.
        """
        try:
            record = parse(copy or b"", host)
        except NewerFormatError as error:
            raise JournalError(self.path, error) from error
        except _UNREADABLE:
            return None
        processes = [task.process for task in record.tasks.values() if task.process is not None]
        return record if any(process.is_alive() for process in processes) else None

    def processes(self) -> list[ProcessHandle]:
        """Return the processes that the file or its copy names and that still run, even if neither can be parsed.

        Unlike `read`, this also understands what an older or newer version has written: every version writes a process
        in the same way.
        """
        found = set()
        for path in (self.path, self._copy):
            with suppress(OSError, ValueError):
                data = read_file(path, settings.STATE_FILE_MAX_BYTES)
                boots = _BOOT.findall(data)
                if not boots or boot_id().encode() in boots:
                    found |= {ProcessHandle(int(pid), int(start)) for pid, start in _PROCESS.findall(data)}
        return [process for process in found if process.is_alive()]

    def remove(self) -> None:
        """Remove the journal after the cluster has gone down.

        Raises:
            OSError: A file cannot be removed; the record is unchanged.
        """
        self.close()
        new = self.path.with_name(f"{self.path.name}.new")  # what an agent has left that was killed
        for path in (new, self._unreleased, self._code, self._copy, self.path):
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


def journal_error(path: Path, error: OSError) -> ClusterError:
    """Return the error for users that the journal cannot be written."""
    return ClusterError(f"{error.filename or path}: cannot write the journal: {error.strerror}")
