"""Runs of programs: started in the warm interpreter, followed by their events, cancelled, recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfcluster.agent.folder import StateFolder
from tfcluster.agent.logs.reading import read_block, tail
from tfcluster.agent.notice import Notice
from tfcluster.agent.runs.interpreter import Interpreter
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.devices import Device
from tfcluster.model.states import ACTIVE, RunState
from tfcluster.model.status import RunStatus
from tfcluster.process import ProcessId, reason, send
from tfcluster.protocol.framing import Message
from tfcluster.runtime.driver import EVENTS, OUTPUT, SENT, Job
from tfcluster.runtime.events import EventLog

_POLL_SECONDS = 0.02
#: Seconds between asking a driver to end and ending it, and then until the interpreter itself counts as broken.
_CANCEL_GRACE = 3.0
_REMEMBERED = 100


@dataclass
class Run:
    """One run.

    Attributes:
        job: What its driver does.
        state: Its state.
        submitted: When it was submitted, in monotonic seconds.
        seconds: How long it took; None while it goes on.
        pidfd: Its driver's pidfd; None without a driver.
        stopping: Why it is being stopped: the state that it ends in and the error, if any.
        timers: What will stop or kill it later.
    """

    job: Job
    state: RunState = RunState.QUEUED
    submitted: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    pidfd: int | None = None
    stopping: tuple[RunState, ClusterError | None] | None = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def events(self) -> Path:
        """The file of its events."""
        return Path(self.job.folder) / EVENTS

    def status(self) -> RunStatus:
        """What `status` says of it."""
        seconds = time.monotonic() - self.submitted if self.seconds is None else self.seconds
        return RunStatus(self.job.run, self.job.program, self.state, round(seconds, 3))


class Runs:
    """The runs that this agent started.

    Attributes:
        runs: Every run that goes on and the latest that ended, by id.
        changed: Told whenever a run's state changes.
    """

    def __init__(self, title: str, folder: StateFolder) -> None:
        self.runs: dict[str, Run] = {}
        self.changed = Notice()
        self._folder = folder
        self._interpreter = Interpreter(title, folder.interpreter_log, self._heard, self._interpreter_died)

    def warm_up(self) -> None:
        """See to it that the next run finds TensorFlow imported.

        Raises:
            OSError: The interpreter cannot be forked.
        """
        self._interpreter.warm_up()

    def make_folder(self, run: str) -> bool:
        """Make the folder of a new run; False when an earlier run has that id.

        Raises:
            ClusterError: It cannot be made.
        """
        try:
            (self._folder.runs / run).mkdir(mode=0o700)
        except FileExistsError:
            return False
        except OSError as error:
            raise ClusterError(f"{error.filename}: cannot make the run's folder: {error.strerror}") from error
        return True

    def submit(self, job: Job, timeout: float | None) -> Run:
        """Take a run on. It is bounded in time from now on; its driver starts with `start`.

        Args:
            job: What to do.
            timeout: Seconds after which it is stopped; None for no bound.

        Raises:
            OSError: The events cannot be written.
        """
        run = Run(job)
        EventLog(run.events).emit("run", run=job.run, program=job.program, devices=job.devices)
        self.runs[job.run] = run
        self._forget_old()
        if timeout is not None:
            error = ClusterError(f"{job.run} timed out after {timeout:g} s", exit_code=ExitCode.TIMED_OUT)
            self._later(run, timeout, lambda: self._stop(run, RunState.FAILED, error))
        return run

    def start(self, run: Run) -> None:
        """Have a run's driver started, unless the run has ended; it goes on whether or not anybody follows it."""
        if run.state in ACTIVE:
            try:
                self._interpreter.drive(run.job)
            except OSError as error:
                self.fail(run, ClusterError(f"no driver could be started for {run.job.run}: {error.strerror}"))

    def fail(self, run: Run, error: ClusterError) -> None:
        """Stop a run because of an error."""
        self._stop(run, RunState.FAILED, error)

    async def follow(self, run: Run) -> AsyncIterator[Message]:
        """The run's events from its first to its result, as they come."""
        offset, rest = 0, b""
        while True:
            ended = run.state not in ACTIVE  # before the reading, so that nothing written since is missed
            data = read_block(run.events, offset)
            offset += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)
            if ended and not data:
                return
            if not data:
                await asyncio.sleep(_POLL_SECONDS)

    def cancel(self, identity: str) -> None:
        """Stop a run; one that has ended already is left as it is.

        Raises:
            ClusterError: There is no such run.
        """
        if identity not in self.runs:
            raise ClusterError(f"no run {identity!r}", hint="`tfcluster status` lists the runs.")
        self._stop(self.runs[identity], RunState.CANCELLED, None)

    def tasks_in_use(self) -> dict[str, list[str]]:
        """The names of the tasks that each run which goes on computes on, by the run's id."""
        return {
            identity: sorted({Device(device, "").short.partition("/device:")[0] for device in run.job.devices})
            for identity, run in self.runs.items()
            if run.state in ACTIVE
        }

    def fail_those_on(self, task: str, why: str) -> None:
        """Stop the runs that compute on a task which no longer serves them.

        Args:
            task: The task's name.
            why: What happened to it, as `worker:1 died (SIGKILL)`.
        """
        for run in list(self.runs.values()):
            if any(Device(device, "").short.startswith(f"{task}/") for device in run.job.devices):
                error = ClusterError(
                    f"{why} during {run.job.run}",
                    hint="`tfcluster events` shows what happened to it; run the program again.",
                )
                self._stop(run, RunState.FAILED, error)

    async def cancel_all(self) -> None:
        """Cancel every run that goes on and wait until they have ended."""
        for run in list(self.runs.values()):
            self._stop(run, RunState.CANCELLED, None)
        while any(run.state in ACTIVE for run in self.runs.values()):
            await self.changed.since(self.changed.count)

    def stop(self) -> None:
        """End the warm interpreter; no run goes on any more."""
        self._interpreter.stop()

    def _forget_old(self) -> None:
        """Keep the latest ended runs only; the records of all of them are in their folders."""
        ended = [identity for identity, run in self.runs.items() if run.state not in ACTIVE]
        for identity in ended[:-_REMEMBERED]:
            del self.runs[identity]

    def _stop(self, run: Run, state: RunState, error: ClusterError | None) -> None:
        if run.state not in ACTIVE or run.stopping is not None:
            return
        run.stopping = (state, error)
        if run.state is RunState.QUEUED:  # nothing of it runs; should its driver still start, it is ended at once
            self._ended(run, None)
            return
        if run.pidfd is not None:
            send(run.pidfd, signal.SIGTERM)
        self._later(run, _CANCEL_GRACE, lambda: self._kill(run))

    def _kill(self, run: Run) -> None:
        """End a driver that does not end; an interpreter that then does not tell of its end is broken."""
        if run.pidfd is not None:
            send(run.pidfd, signal.SIGKILL)
        self._later(run, _CANCEL_GRACE, self._interpreter.kill)

    def _later(self, run: Run, seconds: float, action: Callable[[], None]) -> None:
        run.timers.append(asyncio.get_running_loop().call_later(seconds, action))

    def _heard(self, message: Message) -> None:
        """The interpreter forked a driver, or one has ended."""
        run = self.runs.get(message["run"])
        if "pid" in message:
            pidfd = ProcessId(message["pid"], message["start_time"]).open()
            if run is not None and run.state is RunState.QUEUED:
                run.state, run.pidfd = RunState.RUNNING, pidfd
                self.changed.tell()
            elif pidfd is not None:  # cancelled before it started
                send(pidfd, signal.SIGKILL)
                os.close(pidfd)
        elif run is not None and run.state in ACTIVE:
            self._ended(run, message["status"])

    def _ended(self, run: Run, status: int | None) -> None:
        if run.pidfd is not None:
            os.close(run.pidfd)
            run.pidfd = None
        for timer in run.timers:
            timer.cancel()
        if run.job.sent is not None:
            shutil.rmtree(Path(run.job.folder) / SENT, ignore_errors=True)
        run.seconds = time.monotonic() - run.submitted
        run.state = self._final_state(run, status)
        self.changed.tell()

    def _final_state(self, run: Run, status: int | None) -> RunState:
        """The state in which a run ended; a driver writes the result only of a run that succeeded."""
        last = _last_event(run.events)
        if last.get("event") == "result":
            return RunState.SUCCEEDED
        if run.stopping is not None:
            state, error = run.stopping
        elif last.get("event") == "error":
            state, error = RunState.FAILED, ClusterError.from_json(last["error"])
        else:
            state, error = RunState.FAILED, self._died(run, status)
        with contextlib.suppress(OSError):  # a full disk must not keep the run from ending
            EventLog(run.events).emit(
                "result",
                run=run.job.run,
                program=run.job.program,
                state=state.value,
                seconds=round(run.seconds or 0.0, 6),
                result=None,
                devices={},
                notes=run.job.notes,
                **({"error": error.to_json()} if error else {}),
            )
        return state

    def _died(self, run: Run, status: int | None) -> ClusterError:
        if status is None:
            how, log = "with the interpreter that started it", self._interpreter.log
        else:
            how, log = reason(status), Path(run.job.folder) / OUTPUT
        last, _ = tail(log, 10)
        said = "; it said last:" + "".join(f"\n  {line}" for line in last) if last else ""
        return ClusterError(f"the driver of {run.job.run} died ({how}){said}", hint=f"The whole log is {log}.")

    def _interpreter_died(self) -> None:
        for run in list(self.runs.values()):
            if run.state in ACTIVE:
                self._ended(run, None)


def _last_event(path: Path) -> dict[str, Any]:
    lines, _ = tail(path, 1)
    try:
        found = json.loads(lines[0])
    except (IndexError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
