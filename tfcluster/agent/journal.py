"""What the next agent must know if this one dies: the layout and where each task stands, in one file."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tfcluster.agent.files import Files
from tfcluster.errors import ClusterError
from tfcluster.model.layout import Layout
from tfcluster.model.states import TaskState
from tfcluster.model.status import LastExit
from tfcluster.process import ProcessId, boot_id


@dataclass(frozen=True)
class TaskRecord:
    """What is recorded of one task: its process while it has one, and what its machine needs to go on.

    Attributes:
        process: Its process; None while it has none.
        started: Unix time in seconds at which the process was started.
        restarts: How often it was started again by itself.
        state: Its state.
        ends: Times at which it ended by itself, in monotonic seconds. That clock goes on when an agent dies, no
            change of the date moves it, and it stands still while the machine is suspended, as the tasks do.
        wake_at: When it is to be started again, in monotonic seconds; None while it does not wait for that.
        last_exit: How its latest process ended.
        again: It is being stopped to be started anew.
        generation: That of the layout which the process was started in.
    """

    process: ProcessId | None
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
    """The whole journal.

    Attributes:
        layout: The cluster, without the values that are secret.
        tasks: Where each task stands, by name.
        secrets: The file that has the secret values.
    """

    layout: Layout
    tasks: dict[str, TaskRecord]
    secrets: Path


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
        tasks = {name: asdict(task) for name, task in record.tasks.items()}
        value = {"boot": boot_id(), "layout": record.layout.to_json(), "tasks": tasks, "secrets": str(record.secrets)}
        data = json.dumps(value).encode()
        try:
            self._files.write(self._new, data, durable=True)
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

    def read(self) -> Record | None:
        """The record; None where there is none.

        A file that holds no JSON object was damaged, and its copy stands for it. One that holds another one is the
        work of another version, which its copy is too.

        Raises:
            ClusterError: What is there cannot be understood. It is left as it is: it knows of processes.
        """
        try:
            try:
                value = _load(self.path)
            except FileNotFoundError:
                return None  # whatever the copy says: the name goes last when a cluster goes down
            except (OSError, ValueError):
                if not self._copy.exists():
                    raise
                value = _load(self._copy)
            return _record(value)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClusterError(
                f"{self.path}: cannot be understood ({type(error).__name__}: {error})",
                hint="Was the cluster started by another version of tfcluster? Take it down with that one.",
            ) from error

    def remove(self) -> None:
        """Forget the cluster: it is down.

        Raises:
            OSError: A file cannot be removed; the record stands.
        """
        for path in (self._new, self._copy, self.path):
            self._files.unlink(path)


def _load(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _record(value: dict[str, Any]) -> Record:
    tasks = {name: _task_record(task) for name, task in value["tasks"].items()}
    if value["boot"] != boot_id():
        # No process has outlived the machine, and its monotonic clock has begun anew.
        tasks = {name: replace(task, process=None, ends=(), wake_at=None) for name, task in tasks.items()}
    return Record(Layout.from_json(value["layout"]), tasks, Path(value["secrets"]))


def _task_record(value: dict[str, Any]) -> TaskRecord:
    process, last_exit = value["process"], value["last_exit"]
    return TaskRecord(
        **{
            **value,
            "process": ProcessId(**process) if process else None,
            "state": TaskState(value["state"]),
            "ends": tuple(value["ends"]),
            "last_exit": LastExit.from_json(last_exit) if last_exit else None,
        }
    )
