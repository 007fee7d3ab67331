"""The context of a run that a bundled program receives: cluster addresses, devices, event emitter and statistics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tfcluster.errors import ClusterError


class Emit(Protocol):
    """Callback that writes one event of the run."""

    def __call__(self, event: str, **fields: Any) -> None:
        """Write an event.

        Args:
            event: Name of the event.
            fields: Fields of the event.
        """


@dataclass
class Context:
    """The run that a program is part of.

    Attributes:
        run: The run's id, which is also the name of the resource container of its variables.
        addresses: `host:port` of every task, by job.
        devices: Full names of the devices to compute on.
        emit: Writes an event of the run.
        head: `host:port` of the head task.
        folder: The run's own folder for files that the program writes; it is kept with the run's record.
        sent: Path of the file uploaded with the run, which exists until the run has ended; None without an upload.
        log_placement: Whether the servers log the placement of each operation and the program emits its graphs.
        work: Work counters of each device, by its name without the replica; part of the result.
        notes: Notes for the user about how the run went; part of the result.
        began: When the run's driver began, in monotonic seconds.
    """

    run: str
    addresses: dict[str, list[str]]
    devices: tuple[str, ...]
    emit: Emit
    head: str = ""
    folder: Path = Path()
    sent: Path | None = None
    log_placement: bool = False
    work: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def work_of(self, device: str) -> dict[str, int]:
        """Return the work counters of a device, which become part of the run's result.

        Args:
            device: Full name of the device.
        """
        return self.work.setdefault(device.replace("/replica:0", ""), {"ops": 0})

    def progress(self, done: int, total: int, unit: str) -> None:
        """Emit a progress event.

        Args:
            done: Amount of work done, in `unit`.
            total: Total amount of work, in `unit`.
            unit: The unit of work, in the plural, such as `samples`.
        """
        seconds = round(time.monotonic() - self.began, 3)
        self.emit("progress", done=done, total=total, unit=unit, seconds=seconds)


_this_run: list[Context] = []


def current_run() -> Context:
    """Return the run that this process drives. Scripts use it, because they are not passed the context.

    Raises:
        ClusterError: This process does not drive a run.
    """
    if not _this_run:
        raise ClusterError("this program is not part of a run", hint="Start it with `tfcluster run SCRIPT.py`.")
    return _this_run[0]


def set_current_run(context: Context) -> None:
    """Set the run that this process drives."""
    _this_run[:] = [context]
