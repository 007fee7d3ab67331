"""What is kept of each run in its folder, across agents and after `down`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.states import ACTIVE, RunState
from tfcluster.protocol.typed import decode
from tfcluster.runtime.files import read_file

#: Ended runs that are kept; the folders of older ones are removed.
KEPT = 100
_FILE = "record.json"
_LISTED = 5
# The longest record that is read, in bytes: a result may hold a whole parameter.
_MAX_BYTES = 64 * 2**20
# What the fields have to be by which an agent goes on with a run.
_TYPES: dict[str, Any] = {
    "run": str,
    "program": str,
    "parameters": dict[str, Any],
    "devices": tuple[str, ...],
    "notes": tuple[str, ...],
    "started": float,
    "timeout": float | None,
    "detached": bool,
    "seconds": float | None,
}


@dataclass(frozen=True)
class RunRecord:
    """One run.

    Attributes:
        run: Its id.
        program: Its program.
        parameters: The program's own parameters.
        devices: Full names of the devices that it computes on.
        notes: What the user should know of the choice of devices.
        started: Unix time in seconds at which it was submitted.
        timeout: Seconds after `started` at which it is stopped, whichever agent sees to it; None for no bound.
        detached: It goes on though nobody waits for it.
        state: Its state when this was written.
        stopping: Why it is being stopped: the state that it ends in, and the error if there is one.
        seconds: How long it took; None while it goes on.
        result: What the program found; None where it did not succeed.
        error: Why it failed; None where it did not.
        besides: Names of the tasks that it uses besides those of its devices; see `model.programs.tasks_besides`.
    """

    run: str
    program: str
    parameters: dict[str, Any]
    devices: list[str]
    notes: list[str]
    started: float
    timeout: float | None
    detached: bool
    state: RunState
    stopping: tuple[RunState, dict[str, Any] | None] | None = None
    seconds: float | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    besides: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """What `runs` says of it."""
        kept = ("run", "program", "parameters", "state", "seconds", "started", "result", "error")
        return {name: getattr(self, name) for name in kept}


class Records:
    """The folders of a cluster's runs.

    Args:
        path: The folder that holds them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, run: str) -> Path:
        """A run's own folder."""
        return self.path / run

    def make_folder(self, run: str) -> bool:
        """Make the folder of a new run; False when an earlier run has that id.

        Raises:
            ClusterError: It cannot be made.
        """
        try:
            self.folder(run).mkdir(mode=0o700)
        except FileExistsError:
            return False
        except OSError as error:
            raise ClusterError(f"{error.filename}: cannot make the run's folder: {error.strerror}") from error
        return True

    def write(self, record: RunRecord) -> None:
        """Replace what is kept of a run.

        Raises:
            OSError: It cannot be written; what was kept stands.
        """
        path = self.folder(record.run) / _FILE
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(record)))
        os.replace(temporary, path)

    def read(self, run: str) -> RunRecord | None:
        """What is kept of a run; None where there is nothing that can be understood."""
        try:
            value = json.loads(read_file(self.folder(run) / _FILE, _MAX_BYTES))
            for name, kind in _TYPES.items():
                decode(kind, value[name], name)
            if value["run"] != run:
                return None
            stopping = value["stopping"]
            return RunRecord(
                **{
                    **value,
                    "state": RunState(value["state"]),
                    "stopping": (RunState(stopping[0]), stopping[1]) if stopping else None,
                }
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
            return None

    def read_all(self) -> list[RunRecord]:
        """What is kept of every run, in the order in which they were submitted."""
        found = [record for run in self._names() if (record := self.read(run))]
        return sorted(found, key=lambda record: record.started)

    def find(self, named: str) -> str:
        """The id of the run that is named by it or by its unique beginning.

        Raises:
            ClusterError: There is none, or several begin so.
        """
        names = self._names()
        found = [named] if named in names else [name for name in names if named and name.startswith(named)]
        if len(found) == 1:
            return found[0]
        if found:
            more = ", …" if len(found) > _LISTED else ""
            raise ClusterError(
                f"several runs begin with {named!r}: {', '.join(sorted(found)[:_LISTED])}{more}",
                hint="Give more of the run's id.",
                exit_code=ExitCode.USAGE,
            )
        raise ClusterError(f"no run {named!r}", hint="`tfcluster runs` lists the runs.", exit_code=ExitCode.USAGE)

    def remove_old(self, going_on: Collection[str]) -> None:
        """Remove the folders of all but the latest ended runs.

        Args:
            going_on: Ids of runs that have not ended, whatever is recorded of them.
        """
        ages: Mapping[str, float] = {name: self._age(name) for name in self._names() if name not in going_on}
        for name in sorted(ages, key=lambda each: ages[each])[:-KEPT]:
            record = self.read(name)
            if record is None or record.state not in ACTIVE:
                shutil.rmtree(self.folder(name), ignore_errors=True)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def _age(self, run: str) -> float:
        """When a run's record was written, in Unix seconds; of a run without one when its folder was made."""
        for path in (self.folder(run) / _FILE, self.folder(run)):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0
