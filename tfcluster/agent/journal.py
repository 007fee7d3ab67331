"""What the next agent must know if this one dies: the layout and where each task stands, in one file."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tfcluster.agent.files import Files
from tfcluster.agent.record import Record, TaskRecord, check
from tfcluster.errors import ClusterError
from tfcluster.model.layout import Layout
from tfcluster.process import boot_id
from tfcluster.protocol.typed import decode
from tfcluster.runtime.files import read_file, remove_unless_file

#: Longest journal that is read, in bytes; that of a thousand tasks is below 2 MiB.
_MAX_BYTES = 64 * 2**20
# What reading a journal raises when it is damaged; a DecodeError is a ValueError.
_UNREADABLE = (OSError, ValueError, RecursionError)


@dataclass(frozen=True)
class _Written:
    """What is in the file; see Record.

    Attributes:
        boot: The boot of the machine in which it was written.
    """

    boot: str
    layout: Layout
    tasks: dict[str, TaskRecord]
    secrets: Path
    next: Layout | None


class JournalError(ClusterError):
    """The journal cannot be understood.

    Args:
        path: The journal.
        why: What is wrong with it.
    """

    def __init__(self, path: Path, why: BaseException) -> None:
        self.why = _in_words(why)
        super().__init__(
            f"{path}: cannot be understood: {self.why}",
            hint="`tfcluster down` stops all processes of the cluster and removes the file; then `tfcluster up` starts "
            "it again.",
        )


def _in_words(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "lists or objects too deep inside each other"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


class Journal:
    """The file that holds the record, and a copy of it beside.

    Each writing replaces the file whole, so that an agent that is killed between any two steps leaves the record
    of before or the new one. The data is on the disk before the name changes (a fsync, 0.3 to a few milliseconds on
    flash), so a power loss leaves one of the two as well. The folder is not synced: without it a power loss may bring
    back the record of before, and after a power loss no process lives that only the newer one knew of.
    The copy is for a file that was damaged by something else; it is written after the file, and not synced.
    """

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._new = path.with_suffix(".new")
        self._copy = path.with_suffix(".copy")
        self._files = files or Files()

    def write(self, record: Record) -> None:
        """Replace the record.

        Raises:
            OSError: The file cannot be written; the previous record stands.
        """
        written = _Written(boot_id(), record.layout, record.tasks, record.secrets, record.next)
        data = json.dumps({**asdict(written), "secrets": str(record.secrets)}).encode()
        try:
            for path in (self._new, self._copy):
                remove_unless_file(path)
            self._files.write(self._new, data, durable=True)
            remove_unless_file(self.path)
            self._files.replace(self._new, self.path)
        except OSError:
            with suppress(OSError):  # what a full disk took of it is of no use
                self._files.unlink(self._new)
            raise
        try:
            self._files.write(self._copy, data, durable=False)
        except OSError:
            with suppress(OSError):  # better none than one that is out of date
                self._files.unlink(self._copy)

    def read(self, host: str | None = None) -> Record | None:
        """Read the record; where the file cannot be understood, from the copy.

        Args:
            host: What the cluster calls this host: the record must be about its tasks. None does not check that.

        Returns:
            None where there is no file.

        Raises:
            JournalError: Neither the file nor the copy can be understood. They are left as they are.
        """
        try:
            return _read(self.path, host)
        except FileNotFoundError:
            return None  # whatever the copy says: the name goes last when a cluster goes down
        except _UNREADABLE as error:
            with suppress(*_UNREADABLE):
                return _read(self._copy, host)
            raise JournalError(self.path, error) from error

    def remove(self) -> None:
        """Forget the cluster: it is down.

        Raises:
            OSError: A file cannot be removed; the record stands.
        """
        for path in (self._new, self._copy, self.path):
            remove_unless_file(path)
            self._files.unlink(path)


def _read(path: Path, host: str | None) -> Record:
    """Read a record.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no record.
        RecursionError: It holds lists or objects deep inside each other.
    """
    value = json.loads(read_file(path, _MAX_BYTES))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    value.setdefault("next", None)  # written by a version without it
    written = decode(_Written, value)
    check(written.layout, written.tasks, written.secrets, host)
    tasks = written.tasks
    if written.boot != boot_id():
        # No process has outlived the machine, and its monotonic clock has begun anew.
        tasks = {name: replace(task, process=None, ends=(), wake_at=None) for name, task in tasks.items()}
    return Record(written.layout, tasks, written.secrets, written.next)
