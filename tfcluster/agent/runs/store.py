"""Persistent store of run records, one JSON file in the folder of each run, kept across agents and after `down`."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.core.runs import RunOptions, check_name, find_run
from tfcluster.core.states import ENDED_RUN_STATES, RunState
from tfcluster.core.status import RunStatus
from tfcluster.errors import ClusterError
from tfcluster.os.files import read_file, write_atomically
from tfcluster.processes.runs.run_plan import FILES, RunPlan
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.protocol.serialization import NewerFormatError, from_stored, to_stored
from tfcluster.version import PROTOCOL

_FILE = "record.json"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunRecord:
    """The persistent record of one run."""

    run: str
    options: RunOptions  # what the user asked for
    devices: list[str]  # full names
    notes: list[str]  # for the user, about the choice of devices
    started: float  # Unix time in seconds at which the run was submitted
    detached: bool  # whether the run continues when no command waits for it
    state: RunState  # when the record was written
    # Why the run is being stopped: the state that it will end in, and the error, if any; None while it is not being
    # stopped.
    stopping: tuple[RunState, dict[str, Any] | None] | None = None
    seconds: float | None = None  # duration of the run; None while it is active
    # The program's result; None if the run did not succeed, unless a script has ended by itself or has reported
    # metrics.
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    is_part: bool = False  # whether the run consists of this host's members of a group that another host leads
    ended: float | None = None  # Unix time in seconds at which the run ended
    has_variables: bool = False  # whether servers may still have variables of the run, which has ended
    protocol: int = PROTOCOL  # that of the agent that submitted the run

    @classmethod
    def new(cls, plan: RunPlan, detached: bool) -> RunRecord:
        """Return the record of a run that is submitted now."""
        return cls(
            run=plan.run,
            options=plan.options,
            devices=[*plan.devices, *plan.late_devices],
            notes=plan.notes,
            started=round(time.time(), 3),
            detached=detached,
            state=RunState.QUEUED,
            is_part=plan.group is not None and plan.group.coordinator is not None,
        )

    @classmethod
    def unreadable(cls, run: str, started: float, problem: str) -> RunRecord:
        """Return what stands for a record that cannot be read, so that users see it; it is never written."""
        error = ClusterError(problem).to_json()
        return cls(run, RunOptions("", {}), [], [], started, True, RunState.UNREADABLE, error=error)

    def status(self) -> RunStatus:
        """Return the run's entry in the output of `status`."""
        return RunStatus(
            self.run, self.options.program, self.state, round(self.seconds or 0.0, 3), script=self.options.script
        )

    def summarize(self, missing_output: int) -> RunSummary:
        """Return what `runs` shows of the run."""
        options = self.options
        return RunSummary(
            self.run,
            options.program,
            options.parameters,
            self.state,
            self.seconds,
            self.started,
            self.result,
            self.error,
            options.timeout,
            options.describe_origin(),
            missing_output,
            options.script,
            self.ended,
        )


class RunStore:
    """The folders of a cluster's runs and the record in each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, run: str) -> Path:
        """Return the path of a run's folder."""
        return self.path / run

    def new_run(self, name: str, *, is_on_several_hosts: bool = False) -> str:
        """Generate the id of a new run and create its folder.

        With `is_on_several_hosts`, make sure that no other host has a run with this id. Raises ClusterError: the folder
        cannot be created, or a run cannot have this name.
        """
        check_name(name)
        run_id = f"{name}-{secrets.token_hex(4 if is_on_several_hosts else 2)}"
        while not self.make_folder(run_id):
            # Four digits are easy to type, but an earlier run already has them: use more.
            run_id = f"{name}-{secrets.token_hex(4)}"
        return run_id

    def make_folder(self, run: str) -> bool:
        """Create the folder of a new run; return False if an earlier run has this id, else True."""
        try:
            self.folder(run).mkdir(mode=0o700, parents=True)
            (self.folder(run) / FILES).mkdir(mode=0o700)
        except FileExistsError:
            return False
        except OSError as error:
            raise ClusterError(f"{error.filename}: cannot make the run's folder: {error.strerror}") from error
        return True

    def write(self, record: RunRecord) -> None:
        """Replace the record of a run atomically.

        Raises OSError: the record cannot be written. The previous record is unchanged.
        """
        data = json.dumps(to_stored(record)).encode()
        write_atomically(self.folder(record.run) / _FILE, data)

    def try_write(self, record: RunRecord) -> None:
        """Replace the record of a run; a failure only goes into the agent's log: a full disk must not stop the run."""
        try:
            self.write(record)
        except OSError as error:
            folder = self.folder(record.run)
            _logger.error("%s: cannot write the run's record: %s", folder, error.strerror)

    def read(self, run: str) -> RunRecord | None:
        """Return the record of a run, `RunRecord.unreadable` if it cannot be read, or None if there is none."""
        path = self.folder(run) / _FILE
        try:
            record = from_stored(RunRecord, json.loads(read_file(path, settings.STATE_FILE_MAX_BYTES)))
            problem = "" if record.run == run else f"the record of {record.run}"
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NewerFormatError as error:
            problem = str(error)
        except (OSError, ValueError, RecursionError) as error:
            problem = f"damaged: {error}"
        return RunRecord.unreadable(run, self._age(run), f"{path}: {problem}") if problem else record

    def read_all(self) -> list[RunRecord]:
        """Return the records of all runs, sorted by the time of submission."""
        records = [record for run in self.names() if (record := self.read(run))]
        return sorted(records, key=lambda record: record.started)

    def find(self, prefix: str) -> str:
        """Return the id of the run with the given id, name or unique id prefix; see `find_run`.

        Raises ClusterError: no run has this id or prefix, or the prefix matches several runs.
        """
        return find_run(prefix, self.names())

    def has_old(self, active: Collection[str]) -> bool:
        """Return whether `remove_old` may have something to remove."""
        return len(self.names()) > settings.RUNS_KEPT + len(active)

    def remove_old(self, active: Collection[str]) -> None:
        """Remove the folders of all but the latest `settings.RUNS_KEPT` ended runs.

        `active` has the ids of the runs that have not ended, whatever state their records have.
        """
        ages: Mapping[str, float] = {name: self._age(name) for name in self.names() if name not in active}
        for name in sorted(ages, key=lambda each: ages[each])[: -settings.RUNS_KEPT]:
            record = self.read(name)
            if record is None or record.state in ENDED_RUN_STATES:
                shutil.rmtree(self.folder(name), ignore_errors=True)

    def names(self) -> list[str]:
        """Return the ids of the runs that have a folder."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def _age(self, run: str) -> float:
        """Return the modification time of a run's record, in Unix seconds, or that of its folder without a record."""
        for path in (self.folder(run) / _FILE, self.folder(run)):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0
