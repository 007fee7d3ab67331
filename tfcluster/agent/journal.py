"""The agent's journal: the topology and the state of each task in one file, from which the next agent recovers."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.atomic_file import AtomicFiles
from tfcluster.agent.journal_record import Record, TaskRecord, check
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.process_handle import boot_id
from tfcluster.processes.files import read_file, remove_unless_file
from tfcluster.protocol.serialization import decode

# The exceptions that reading a damaged journal raises; a DecodeError is a ValueError.
_UNREADABLE = (OSError, ValueError, RecursionError)


@dataclass(frozen=True)
class _Written:
    """The JSON document in the file; see Record for the other fields.

    Attributes:
        boot: The boot id of the machine when the document was written.
    """

    boot: str
    topology: ClusterTopology
    tasks: dict[str, TaskRecord]
    secrets: Path
    next: ClusterTopology | None


class JournalError(ClusterError):
    """The journal is damaged.

    Args:
        path: The journal.
        why: The error that was raised while the journal was read.
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
    """The journal: a file that holds the record, and a copy of that file.

    Every write replaces the whole file atomically, so an agent that is killed between any two steps leaves either the
    previous record or the new one. The data is synced to the disk before the rename (an fsync takes 0.3 to a few
    milliseconds on flash), so a power loss leaves one of the two as well. The directory is not synced: a power loss may
    bring back the previous record, which is harmless, because after a power loss no process is alive that only the
    newer record names. The copy is for the case that something else damages the file; it is written after the file,
    and is not synced.
    """

    def __init__(self, path: Path, files: AtomicFiles | None = None) -> None:
        self.path = path
        self._new = path.with_suffix(".new")
        self._copy = path.with_suffix(".copy")
        self._files = files or AtomicFiles()

    def write(self, record: Record) -> None:
        """Replace the record.

        Args:
            record: The new record.

        Raises:
            OSError: The file cannot be written; the previous record is unchanged.
        """
        written = _Written(boot_id(), record.topology, record.tasks, record.secrets, record.next)
        data = json.dumps({**asdict(written), "secrets": str(record.secrets)}).encode()
        try:
            for path in (self._new, self._copy):
                remove_unless_file(path)
            self._files.write(self._new, data, durable=True)
            remove_unless_file(self.path)
            self._files.replace(self._new, self.path)
        except OSError:
            with suppress(OSError):  # a partial file, for example on a full disk, has no use
                self._files.unlink(self._new)
            raise
        try:
            self._files.write(self._copy, data, durable=False)
        except OSError:
            with suppress(OSError):  # no copy is better than an outdated one
                self._files.unlink(self._copy)

    def read(self, host: str | None = None) -> Record | None:
        """Read the record, from the copy if the file is damaged.

        Args:
            host: The cluster's name for this host; the record must be about this host's tasks. None skips this check.

        Returns:
            The record; None if the file does not exist.

        Raises:
            JournalError: Both the file and the copy are damaged. They are left unchanged.
        """
        try:
            return _read(self.path, host)
        except FileNotFoundError:
            return None  # ignore the copy: `remove` removes the file last when a cluster goes down
        except _UNREADABLE as error:
            with suppress(*_UNREADABLE):
                return _read(self._copy, host)
            raise JournalError(self.path, error) from error

    def remove(self) -> None:
        """Remove the journal after the cluster has gone down.

        Raises:
            OSError: A file cannot be removed; the record is unchanged.
        """
        for path in (self._new, self._copy, self.path):
            remove_unless_file(path)
            self._files.unlink(path)


def _read(path: Path, host: str | None) -> Record:
    """Read a record from a file.

    Args:
        path: The file.
        host: As in Journal.read.

    Returns:
        The record.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file does not contain a valid record.
        RecursionError: Lists or objects in the file are nested too deeply.
    """
    value = json.loads(read_file(path, settings.STATE_FILE_MAX_BYTES))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    value.setdefault("next", None)  # a file of a version without this field
    written = decode(_Written, value)
    check(written.topology, written.tasks, written.secrets, host)
    tasks = written.tasks
    if written.boot != boot_id():
        # The machine rebooted: no process has survived, and the monotonic clock has restarted.
        tasks = {name: replace(task, process=None, ends=(), wake_at=None) for name, task in tasks.items()}
    return Record(written.topology, tasks, written.secrets, written.next)
