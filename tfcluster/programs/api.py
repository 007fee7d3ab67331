"""The interface of a program, for the programs of tfcluster and for those of other packages.

A program is a package with these modules:

- `__init__` has the declaration, `PROGRAM = Program(...)`. It imports neither TensorFlow nor click.
- `options` has `command`, a click command with the program's own options. Its function takes SharedOptions and these
  options, and returns a Submission.
- `run` has the function `run(context, **parameters)`, which gets the run's Context and returns the result, a dict of
  JSON values. It is imported on the head task's host only, and is the only module that imports TensorFlow.
- `render` has the function `summary(result, seconds)`, which returns the lines to show on a terminal: strings, or what
  rich can print. A program without this module has its result shown as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tfcluster import settings
from tfcluster.core.devices import without_replica
from tfcluster.core.programs import ProgramTraits, TaskRequirement, TaskSelector
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST
from tfcluster.records import record_class

__all__ = [
    "Context",
    "Emit",
    "Program",
    "ProgramTraits",
    "SharedOptions",
    "Submission",
    "TaskRequirement",
    "TaskSelector",
    "current_run",
    "set_current_run",
]


def _no_tasks(parameters: Mapping[str, Any]) -> Sequence[TaskRequirement]:
    return ()


@record_class(frozen=True)
class Program:
    """The declaration of a program.

    Attributes:
        help: What the program does, in one line.
        fault_tolerant: The program handles lost tasks itself, as long as one of the tasks that it computes on remains.
        is_script: The program is the user's own script; see ProgramTraits.
        required_tasks: Returns, for a run's parameters, tasks that the run requires besides those that it computes on.
        describe: Formats a run's parameters in short, for the list of runs; None to show their names and values.
    """

    help: str
    fault_tolerant: bool = False
    is_script: bool = False
    required_tasks: Callable[[Mapping[str, Any]], Sequence[TaskRequirement]] = _no_tasks
    describe: Callable[[Mapping[str, Any]], str] | None = None

    def traits(self, parameters: Mapping[str, Any], package: str = "") -> ProgramTraits:
        """Return what an agent must know to supervise a run with these parameters.

        `package` is the installed package that the program belongs to; empty if it is part of tfcluster.
        """
        return ProgramTraits(package, self.fault_tolerant, self.is_script, tuple(self.required_tasks(parameters)))


@record_class(frozen=True)
class SharedOptions:
    """The values of the options that every program has."""

    seed: int | None
    devices: tuple[str, ...]
    gpus: int | None
    strict: bool
    timeout: float | None
    log_placement: bool
    placement_graph: Path | None
    detach: bool
    cluster: str | None
    output: str
    name: str | None = None
    notify: str | None = None

    def seed_or_random(self) -> int:
        """Return the seed that the user gave, or a random one."""
        if self.seed is not None:
            return self.seed
        import secrets  # slow to import, and needed by few commands

        return secrets.randbits(32)


@record_class(frozen=True)
class Submission:
    """The program's part of what the user's options ask for.

    Attributes:
        parameters: The keyword arguments of the program's `run`, as JSON values.
        upload: An open file to upload with the run, which may be standard input; None for none.
        upload_name: The name of the file in the run's folder.
        on_success: Called with the result event of a run that succeeded, after the result is shown.
        approve_code: Called with a description of the code that is to be sent to another host, if there is much of it;
            what it raises ends the command. For scripts only.
        start_timeout: Seconds after which the run is stopped if it waits for its tasks; None for no limit. For scripts
            only.
    """

    parameters: dict[str, Any]
    upload: BinaryIO | None = None
    upload_name: str = "upload"
    on_success: Callable[[dict[str, Any]], None] | None = None
    approve_code: Callable[[str], None] = lambda description: None
    start_timeout: float | None = None


class Emit(Protocol):
    """Callback that writes one event of the run."""

    def __call__(self, event: str, **fields: Any) -> None:
        """Write an event of a name."""


@dataclass
class Context:
    """The run that a program is part of.

    Attributes:
        run: The run's id, which is also the name of the resource container of its variables.
        addresses: `host:port` of every task, by job.
        devices: Full names of the devices to compute on.
        late_devices: Full names of those to compute on when their tasks answer, which were not ready at the start.
        emit: Writes an event of the run.
        head_address: `host:port` of the head task.
        folder: The run's own folder for files that the program writes; it is kept with the run's record.
        output_folder: The folder of those that are for the user, as $TFCLUSTER_OUTPUT; `tfcluster fetch` copies them.
        upload_path: Path of the file uploaded with the run, which exists until the run has ended; None without one.
        host: Name of the host that the program runs on, as in the spec; `localhost` is the machine of the command.
        log_placement: Whether the servers log the placement of each operation and the program emits its graphs.
        device_stats: Work counters of each device, by its name without the replica; part of the result.
        notes: Notes for the user about how the run went; part of the result.
        started_at: When the run's driver began, in monotonic seconds.
        ports: The ports on which the other hosts can connect to the program; empty if they can to any, or not at all.
        chose_devices: Whether the user chose the devices, or their number.
    """

    run: str
    addresses: dict[str, list[str]]
    devices: tuple[str, ...]
    emit: Emit
    head_address: str = ""
    folder: Path = Path()
    output_folder: Path = Path()
    upload_path: Path | None = None
    log_placement: bool = False
    host: str = LOCAL_HOST
    device_stats: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started_at: float = field(default_factory=time.monotonic)
    ports: tuple[int, ...] = ()
    late_devices: tuple[str, ...] = ()
    chose_devices: bool = False
    _progress_at: float = -math.inf

    def stats_of(self, device: str) -> dict[str, int]:
        """Return the work counters of a device of a full name, which become part of the run's result."""
        return self.device_stats.setdefault(without_replica(device), {"ops": 0})

    def progress(self, done: int, total: int, unit: str) -> None:
        """Emit a progress event, unless one was just emitted and there is more to do; see `tfcluster.progress`."""
        now = time.monotonic()
        if now - self._progress_at >= settings.PROGRESS_INTERVAL_SECONDS or done >= total:
            self._progress_at = now
            self.emit("progress", done=done, total=total, unit=unit, seconds=round(now - self.started_at, 3))


_current_run: list[Context] = []


def current_run() -> Context:
    """Return the run that this process drives. Scripts use it, because they are not passed the context.

    Raises:
        ClusterError: This process does not drive a run.
    """
    if not _current_run:
        raise ClusterError("this program is not part of a run", hint="Start it with `tfcluster run SCRIPT.py`.")
    return _current_run[0]


def set_current_run(context: Context) -> None:
    """Set the run that this process drives."""
    _current_run[:] = [context]
