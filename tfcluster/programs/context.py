"""What a bundled program gets from its run: the cluster, its devices, and a way to report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tfcluster.errors import ClusterError


class Emit(Protocol):
    """Writes one event of the run."""

    def __call__(self, event: str, **fields: Any) -> None:
        """Write the event with its fields."""


@dataclass
class Context:
    """The run that a program is part of.

    Attributes:
        run: The run's id, also the name of the container that its variables are in.
        addresses: `host:port` of every task, by job.
        devices: Full names of the devices to compute on.
        emit: Writes an event of the run.
        head: `host:port` of the task that leads the cluster.
        folder: The run's own folder, for files that the program writes; it is kept with the run's record.
        sent: The file that was sent with the run; it is there until the run has ended. None where none was sent.
        log_placement: Have the servers print where they place each operation, and tell of the graphs.
        work: What each device did, by its name without the replica; part of the result.
        notes: What the user should know about how the run went; part of the result.
        began: When its driver began, in monotonic seconds.
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

    def progress(self, done: int, total: int, unit: str) -> None:
        """Report how far the run is.

        Args:
            done: Work done, in `unit`.
            total: All the work, in `unit`.
            unit: What is counted, in the plural, as `samples`.
        """
        seconds = round(time.monotonic() - self.began, 3)
        self.emit("progress", done=done, total=total, unit=unit, seconds=seconds)


_this_run: list[Context] = []


def current_run() -> Context:
    """The run that this process drives; for scripts, which are not handed it.

    Raises:
        ClusterError: This process drives none.
    """
    if not _this_run:
        raise ClusterError("this program is not part of a run", hint="Start it with `tfcluster run SCRIPT.py`.")
    return _this_run[0]


def set_current_run(context: Context) -> None:
    """Make a run the one that this process drives."""
    _this_run[:] = [context]
