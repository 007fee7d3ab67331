"""The agent's in-memory state of one run: its record, its driver process and its timers."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfcluster.agent.runs.run_store import RunRecord
from tfcluster.core.states import ACTIVE, RunState
from tfcluster.core.status import RunStatus
from tfcluster.process_handle import ProcessHandle
from tfcluster.processes.run_spec import EVENTS, OUTPUT, SENT, RunSpec


@dataclass
class Run:
    """The state of one run.

    Attributes:
        record: The persistent record of the run.
        folder: The run's folder.
        began: When the run was submitted, in monotonic seconds.
        job: What the run's driver is to do; None for a run that an earlier agent started.
        driven: Whether `job` has been sent to a fork server.
        fork_servers: Number of fork servers that `job` has been sent to.
        process: The driver's process; None while there is no driver.
        pidfd: The driver's pidfd; None while there is no driver.
        ending: Whether the driver has exited and the agent is cleaning up after it.
        timers: Timers that will stop or kill the run.
        unowned: Timer that will stop the run unless the command that waits for the run reconnects; None if not set.
        stranded: Timer that will stop the run because all of its tasks are lost; None if not set.
    """

    record: RunRecord
    folder: Path
    began: float = field(default_factory=time.monotonic)
    job: RunSpec | None = None
    driven: bool = False
    fork_servers: int = 0
    process: ProcessHandle | None = None
    pidfd: int | None = None
    ending: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    unowned: asyncio.TimerHandle | None = None
    stranded: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> str:
        """The run's id."""
        return self.record.run

    @property
    def state(self) -> RunState:
        """The run's state."""
        return self.record.state

    @property
    def active(self) -> bool:
        """Whether the run has not ended."""
        return self.record.state in ACTIVE

    @property
    def events(self) -> Path:
        """The file that holds the run's events."""
        return self.folder / EVENTS

    @property
    def output(self) -> Path:
        """The file that holds the output of the run's driver."""
        return self.folder / OUTPUT

    @property
    def sent(self) -> Path:
        """The folder that holds the file uploaded with the run."""
        return self.folder / SENT

    def now(self) -> RunRecord:
        """Return the run's record, with the seconds that the run has taken so far if it is active."""
        seconds = self.record.seconds
        if seconds is None:
            seconds = time.monotonic() - self.began
        return replace(self.record, seconds=round(seconds, 6))

    def status(self) -> RunStatus:
        """Return the run's entry in the output of `status`."""
        return RunStatus(self.identity, self.record.program, self.state, round(self.now().seconds or 0.0, 3))

    def has_driver(self, process: ProcessHandle, pidfd: int | None) -> None:
        """Record that the run's driver has been started.

        Args:
            process: The driver's process.
            pidfd: The driver's pidfd; None if the driver has exited already.
        """
        self.record = replace(self.record, state=RunState.RUNNING)
        self.process, self.pidfd = process, pidfd

    def forget_driver(self) -> None:
        """Close the driver's pidfd, so that the driver is no longer watched."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def forget_timers(self) -> None:
        """Cancel all timers that would stop or kill the run."""
        for timer in (*self.timers, self.unowned, self.stranded):
            if timer is not None:
                timer.cancel()
        self.timers, self.unowned, self.stranded = [], None, None
