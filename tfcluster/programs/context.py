"""The run that this process drives, as the functions see it that programs and scripts call."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tfcluster import settings
from tfcluster.core.devices import not_ready, without_replica
from tfcluster.core.run_events import PlacementEvent
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST


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
        log_placement: Whether the program emits the events `graph` and `placement`.
        device_stats: Work counters of each device, by its name without the replica; part of the result.
        notes: Notes for the user about how the run went; part of the result.
        started_at: When the run's driver began, in monotonic seconds.
        ports: The ports on which the other hosts can connect to the program; empty if they can to any, or not at all.
        chose_devices: Whether the user chose the devices, or their number.
        is_member: Whether this process is a member of a group.
        missing: Why each task that was not ready when the run began was not, by its name.
        result: What `tfcluster.result` was given last.
        seed: The seed if none was given.
        placed: The placements that were emitted.
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
    is_member: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    result: Any = None
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    placed: set[PlacementEvent] = field(default_factory=set)
    _progress_at: float = -math.inf
    _progress: dict[str, Any] = field(default_factory=dict)
    _is_progress_sent: bool = True

    def stats_of(self, device: str) -> dict[str, int]:
        """Return the work counters of a device of a full name, which become part of the run's result."""
        return self.device_stats.setdefault(without_replica(device), {"ops": 0})

    def progress(self, done: int, total: int, unit: str) -> None:
        """Emit a progress event, unless one was just emitted and there is more to do; see `tfcluster.progress`."""
        now, report = time.monotonic(), {"done": done, "total": total, "unit": unit}
        if report.items() <= self._progress.items():
            return
        self._progress = {**report, "seconds": round(now - self.started_at, 3)}
        self._is_progress_sent = False
        if now - self._progress_at >= settings.PROGRESS_INTERVAL_SECONDS or done >= total:
            self._progress_at = now
            self.flush_progress()

    def flush_progress(self) -> None:
        """Emit the last report of progress, unless it was; on a full disk it is lost."""
        if not self._is_progress_sent:
            self._is_progress_sent = True
            with contextlib.suppress(ClusterError):
                self.emit("progress", **self._progress)


_current_run: list[Context] = []


def current_run() -> Context:
    """Return the run that this process drives.

    Raises:
        ClusterError: This process does not drive a run.
    """
    if not _current_run:
        raise ClusterError("this program is not part of a run", hint="Start it with `tfcluster run SCRIPT.py`.")
    return _current_run[0]


def set_current_run(context: Context) -> None:
    """Set the run that this process drives."""
    _current_run[:] = [context]


def devices_of_run() -> list[str]:
    """Return the devices of the run, also those that are late; raise a ClusterError if there are none."""
    context = current_run()
    if context.is_member:
        message = "a member of `tfcluster launch` does not compute on the devices of servers"
        raise ClusterError(message, hint="`tfcluster run` starts programs that do.")
    if devices := [*context.devices, *context.late_devices]:
        return devices
    raise not_ready(context.missing.values() or ["the cluster has no device to compute on"])


def spread_devices(at_most: int | None) -> list[str]:
    """Return the run's devices, or some of them; see `tfcluster.devices`."""
    devices = devices_of_run()
    if at_most is None or current_run().chose_devices:
        return devices
    count = max(1, min(len(devices), at_most))
    return [devices[number * len(devices) // count] for number in range(count)]


def report_progress(done: int, total: int, unit: str) -> None:
    """Report progress; see `tfcluster.progress`."""
    if not isinstance(unit, str):
        raise TypeError(f"tfcluster.progress: the unit must be a string, not {unit!r:.60}")
    if not (unit.isprintable() and 0 < len(unit) <= settings.METRIC_NAME_MAX_CHARS):
        raise ValueError(f"tfcluster.progress: {unit!r:.60} is not a unit, such as `samples`")
    if not 0 <= done <= total:
        raise ValueError(f"tfcluster.progress: {done:,} of {total:,} {unit} cannot be done")
    if _current_run and not _current_run[0].is_member:
        _current_run[0].progress(done, total, unit)


def add_note(text: str) -> None:
    """Add a note; see `tfcluster.note`."""
    if _current_run and not _current_run[0].is_member and len(_current_run[0].notes) < settings.NOTES_MAX:
        _current_run[0].notes.append(str(text)[: settings.NOTE_MAX_CHARS])


def set_result(value: Any) -> None:
    """Set the value of the run; see `tfcluster.result`."""
    try:
        text = json.dumps(value, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"tfcluster.result: JSON does not have this value: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"tfcluster.result: JSON does not have this value: {error}") from None
    if len(text) > settings.RESULT_MAX_CHARS:
        raise ValueError(f"tfcluster.result: a result has at most {settings.RESULT_MAX_CHARS:,} characters of JSON")
    copy = json.loads(text)  # what the caller changes later is not part of it
    if _is_deeper(copy, settings.RESULT_MAX_DEPTH):
        raise ValueError(f"tfcluster.result: a result is nested at most {settings.RESULT_MAX_DEPTH} times")
    if _current_run and not _current_run[0].is_member:
        _current_run[0].result = copy


def _is_deeper(value: Any, depth: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_is_deeper(part, depth - 1) for part in parts)


def run_seed() -> int:
    """Return the seed of the run; see `tfcluster.seed`."""
    if given := os.environ.get("TFCLUSTER_SEED"):
        return int(given)
    return current_run().seed
