"""What the next agent must know if this one dies: the layout and each task's process, in one file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.model.layout import Layout
from tfcluster.process import ProcessId


@dataclass(frozen=True)
class TaskRecord:
    """What is recorded of one task: its process while it has one, since when, and its restarts so far.

    Attributes:
        process: Its process; None while it has none.
        started: Unix time in seconds at which the process was started.
        restarts: How often it was started again by itself.
        wanted: Whether it is meant to be up.
        generation: That of the layout which the process was started in.
    """

    process: ProcessId | None
    started: float
    restarts: int
    wanted: bool
    generation: int = 0


@dataclass(frozen=True)
class Record:
    """The whole journal."""

    layout: Layout
    tasks: dict[str, TaskRecord]


class Journal:
    """The file that holds the record; each writing replaces it whole, so a reader never sees half of one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, record: Record) -> None:
        """Replace the record.

        Raises:
            OSError: The file cannot be written; the previous record stands.
        """
        value = {
            "layout": record.layout.to_json(),
            "tasks": {name: asdict(task) for name, task in record.tasks.items()},
        }
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(value))
        os.replace(temporary, self.path)

    def read(self) -> Record | None:
        """The record; None where there is none.

        Raises:
            ClusterError: What is there cannot be understood. It is left as it is: it knows of processes.
        """
        try:
            value = json.loads(self.path.read_text())
            return Record(
                Layout.from_json(value["layout"]),
                {name: _task_record(task) for name, task in value["tasks"].items()},
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClusterError(
                f"{self.path}: cannot be understood ({type(error).__name__}: {error})",
                hint="Was the cluster started by another version of tfcluster? Take it down with that one.",
            ) from error

    def remove(self) -> None:
        """Forget the cluster: it is down."""
        self.path.with_suffix(".new").unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def _task_record(value: dict[str, Any]) -> TaskRecord:
    process = value["process"]
    return TaskRecord(**{**value, "process": ProcessId(**process) if process else None})
