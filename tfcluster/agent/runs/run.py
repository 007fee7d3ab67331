"""One run as the agent has it: its record, its driver, and what will stop it."""

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
from tfcluster.processes.run_driver import EVENTS, OUTPUT, SENT, RunSpec


@dataclass
class Run:
    """One run.

    Attributes:
        record: What is kept of it.
        folder: Its folder.
        began: When it was submitted, in monotonic seconds.
        job: What its driver is to do; None for a run that another agent started.
        driven: Its job has been handed to a fork server.
        fork_servers: How many it has been handed to.
        process: Its driver; None without one.
        pidfd: Its driver's pidfd; None without one.
        ending: Its driver has ended, and what that leaves is being seen to.
        timers: What will stop or kill it later.
        unowned: What will stop it because the command that waits for it has not come back.
        stranded: What will stop it because no task is left to it.
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
        """Its id."""
        return self.record.run

    @property
    def state(self) -> RunState:
        """Its state."""
        return self.record.state

    @property
    def active(self) -> bool:
        """Whether it goes on."""
        return self.record.state in ACTIVE

    @property
    def events(self) -> Path:
        """The file of its events."""
        return self.folder / EVENTS

    @property
    def output(self) -> Path:
        """The file of what its driver prints."""
        return self.folder / OUTPUT

    @property
    def sent(self) -> Path:
        """The folder of the file that is sent with it."""
        return self.folder / SENT

    def now(self) -> RunRecord:
        """Its record with the seconds so far."""
        seconds = self.record.seconds
        if seconds is None:
            seconds = time.monotonic() - self.began
        return replace(self.record, seconds=round(seconds, 6))

    def status(self) -> RunStatus:
        """What `status` says of it."""
        return RunStatus(self.identity, self.record.program, self.state, round(self.now().seconds or 0.0, 3))

    def has_driver(self, process: ProcessHandle, pidfd: int | None) -> None:
        """Its driver has been started."""
        self.record = replace(self.record, state=RunState.RUNNING)
        self.process, self.pidfd = process, pidfd

    def forget_driver(self) -> None:
        """Its driver is watched no longer."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def forget_timers(self) -> None:
        """Nothing is to stop it any more."""
        for timer in (*self.timers, self.unowned, self.stranded):
            if timer is not None:
                timer.cancel()
        self.timers, self.unowned, self.stranded = [], None, None
