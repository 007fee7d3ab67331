"""Runs of programs: submitted, driven in processes of their own, stopped, adopted from an earlier agent, recorded."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from tfcluster.agent import children
from tfcluster.agent.folder import StateFolder
from tfcluster.agent.notice import Notice
from tfcluster.agent.runs import lost_tasks
from tfcluster.agent.runs.ending import conclude, result_event
from tfcluster.agent.runs.following import follow
from tfcluster.agent.runs.fork_server_client import ForkServer
from tfcluster.agent.runs.records import KEPT, Records, RunRecord
from tfcluster.agent.runs.run import Run
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.programs import SCRIPT, tasks_besides, tasks_computed_on
from tfcluster.model.states import ACTIVE, RunState
from tfcluster.process import ProcessId, send
from tfcluster.protocol.framing import Message
from tfcluster.runtime.driver import EVENTS, OUTPUT, Job, claim, claimed_by
from tfcluster.runtime.events import EventLog

_POLL_SECONDS = 0.02
#: Seconds between asking a driver to end and ending it, and then until the interpreter itself counts as broken.
_CANCEL_GRACE = 3.0
#: Seconds that the command which waits for a run has to come back once its agent was lost; it tries at once.
_UNOWNED_SECONDS = 60.0
#: Seconds in which a fork server imports TensorFlow, however slow the disk, and forks a driver; else it hangs.
_START_SECONDS = 120.0
#: How many fork servers are asked for a run's driver: one may be killed, or a signal may stop it.
_FORK_SERVERS = 3


class Runs:
    """The runs that go on, and those that ended since this agent began.

    Args:
        title: What `ps` shows for the interpreter.
        folder: The cluster's state folder.
        clear: Clears a container on every task.
        look: Looks for tasks that are lost, of which the agent does not hear by itself, and tells `tasks_are`.

    Attributes:
        runs: The runs, by id, the oldest first.
        records: What is kept of every run, also of earlier ones.
        changed: Told whenever a run's state changes.
    """

    def __init__(
        self,
        title: str,
        folder: StateFolder,
        clear: Callable[[str], Awaitable[None]],
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self.runs: dict[str, Run] = {}
        self.records = Records(folder.runs)
        self.changed = Notice()
        self._clear = clear
        self._look = look
        self._fork_server = ForkServer(title, folder.interpreter_log, self._heard, self._fork_server_died)
        self._background: set[asyncio.Task[None]] = set()

    def warm_up(self) -> None:
        """See to it that the next run finds TensorFlow imported.

        Raises:
            OSError: The interpreter cannot be forked.
        """
        self._fork_server.warm_up()

    def submit(self, job: Job, timeout: float | None, detached: bool) -> Run:
        """Take a run on. It is bounded in time from now on; its driver starts with `start`.

        Args:
            job: What to do.
            timeout: Seconds after which it is stopped; None for no bound.
            detached: It goes on though nobody waits for it.

        Raises:
            OSError: The run cannot be recorded.
        """
        now = round(time.time(), 3)
        record = RunRecord(
            job.run,
            job.program,
            job.parameters,
            job.devices,
            job.notes,
            now,
            timeout,
            detached,
            RunState.QUEUED,
            besides=tasks_besides(job.program, job.parameters, job.devices, job.addresses, job.head),
        )
        run = Run(record, Path(job.folder), job=job)
        EventLog(run.events).emit("run", run=job.run, program=job.program, devices=job.devices)
        self.records.write(record)
        self._take(run)
        self._forget_old()
        return run

    def start(self, run: Run) -> None:
        """Have a run's driver started, unless it is or the run has ended; it goes on whether or not anybody follows."""
        if run.active and not run.ending and not run.driven:
            self._request_driver(run)
            self._later(run, _START_SECONDS, partial(self._refuse_to_wait, run))

    def _request_driver(self, run: Run) -> None:
        assert run.job is not None, "who adopts a run does not start it"
        run.driven = True
        run.fork_servers += 1
        try:
            self._fork_server.drive(run.job)
        except OSError as error:
            self.fail(run, ClusterError(f"no driver could be started for {run.identity}: {error.strerror}"))

    def check_fork_server(self) -> int | None:
        """End a fork server that a signal has stopped, and return its pid; runs that wait for it get another one."""
        return self._fork_server.kill_if_stopped()

    def adopt(self) -> None:
        """Go on with the runs that an earlier agent left: watch drivers that live, conclude what has ended."""
        for record in self.records.read_all():
            if record.state in ACTIVE:
                folder = self.records.folder(record.run)
                run = Run(record, folder, began=time.monotonic() - (time.time() - record.started))
                self._take(run)
                if not record.detached:
                    loop = asyncio.get_running_loop()
                    run.unowned = loop.call_later(_UNOWNED_SECONDS, self.cancel, record.run)
                self._watch(run, "its agent died before the driver had started")
                if run.record.stopping is not None and run.active:
                    self._terminate(run)

    async def follow(self, identity: str) -> AsyncGenerator[Message, None]:
        """A run's events from its first to its result, as they come; also those of a run that ended long ago.

        Raises:
            ClusterError: Nothing is left of it.
        """
        run = self.runs.get(identity)
        record = run.record if run is not None else self.records.read(identity)
        if record is None:
            raise ClusterError(f"of {identity} no record is left")
        folder = self.records.folder(identity)

        async def wait() -> None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.since(self.changed.count), _POLL_SECONDS)

        output = folder / OUTPUT if record.program == SCRIPT else None
        found = False
        async for event in follow(folder / EVENTS, output, lambda: run is not None and run.active, wait):
            found = event["event"] == "result"
            yield event
        record = record if run is None else run.record
        if not found and record.state not in ACTIVE:  # a full disk did not take it
            yield result_event(record)

    def cancel(self, identity: str) -> None:
        """Stop a run; one that has ended already is left as it is."""
        if identity in self.runs:
            self._stop(self.runs[identity], RunState.CANCELLED, None)

    def is_owned(self, identity: str) -> None:
        """The command that waits for a run has come back after its agent was lost."""
        run = self.runs.get(identity)
        if run is not None and run.unowned is not None:
            run.unowned.cancel()
            run.unowned = None

    def fail(self, run: Run, error: ClusterError) -> None:
        """Stop a run because of an error."""
        self._stop(run, RunState.FAILED, error)

    def tasks_are(self, every: Collection[str], down: Mapping[str, str]) -> None:
        """Stop the runs that cannot go on without the tasks that are down; see `lost_tasks`.

        A driver may have met the loss before the agent did: then the lost task is why its run ended.
        """
        for run in list(self.runs.values()):
            if run.active:
                lost_tasks.consider(run, every, down, self.fail)

    def all_records(self) -> list[RunRecord]:
        """What is known of every run, in the order in which they were submitted."""
        kept = self.records.read_all()
        return [self.runs[record.run].now() if record.run in self.runs else record for record in kept]

    def tasks_in_use(self, every: Collection[str]) -> dict[str, list[str]]:
        """The names of the tasks that each run which goes on uses, by the run's id.

        Args:
            every: Names of the cluster's tasks.
        """
        active = {identity: run.record for identity, run in self.runs.items() if run.active}
        return {
            identity: sorted({*tasks_computed_on(record.program, record.devices, every), *record.besides})
            for identity, record in active.items()
        }

    async def cancel_all(self) -> None:
        """Cancel every run that goes on and wait until they have ended."""
        for run in list(self.runs.values()):
            self._stop(run, RunState.CANCELLED, None)
        while any(run.active for run in self.runs.values()):
            await self.changed.since(self.changed.count)

    def stop(self) -> None:
        """End the warm interpreter; no run goes on any more."""
        self._fork_server.stop()

    def _take(self, run: Run) -> None:
        self.runs[run.identity] = run
        if (timeout := run.record.timeout) is not None:
            error = ClusterError(f"{run.identity} timed out after {timeout:g} s", exit_code=ExitCode.TIMED_OUT)
            left = run.record.started + timeout - time.time()
            self._later(run, max(0.0, left), partial(self.fail, run, error))

    def _forget_old(self) -> None:
        """Keep the latest ended runs only, here and on the disk."""
        ended = [identity for identity, run in self.runs.items() if not run.active]
        for identity in ended[:-KEPT]:
            del self.runs[identity]
        self.records.remove_old([identity for identity, run in self.runs.items() if run.active])

    def _watch(self, run: Run, why_none: str) -> None:
        """Watch the driver of a run that nobody will tell us of: another agent's, or of an interpreter that died.

        Args:
            run: The run.
            why_none: Why it has no driver, if it has none.
        """
        if claim(run.folder, None):  # should a driver still start, it finds that and ends
            self._ended(run, None, why_none)
            return
        process = claimed_by(run.folder)
        if process is None:
            self._ended(run, None, why_none)
            return
        run.forget_driver()
        run.has_driver(process, children.when_ended(process, partial(self._driver_gone, run)))

    def _driver_gone(self, run: Run, status: int | None) -> None:
        run.pidfd = None  # closed by who watched it
        self._ended(run, status, "nobody was there to see how")

    def _refuse_to_wait(self, run: Run) -> None:
        """Fail a run that has no driver yet; the next one gets another interpreter."""
        if run.process is None:
            error = ClusterError(
                f"no driver could be started for {run.identity} within {_START_SECONDS:g} s",
                hint=f"{self._fork_server.log} may say why; run the program again.",
            )
            self.fail(run, error)
            self._fork_server.kill()

    def _stop(self, run: Run, state: RunState, error: ClusterError | None) -> None:
        if not run.active or run.record.stopping is not None or (run.ending and error is None):
            return
        run.record = replace(run.record, stopping=(state, error.to_json() if error else None))
        self._write(run)
        if not run.ending:
            self._terminate(run)

    def _terminate(self, run: Run) -> None:
        if run.process is None:  # nothing of it runs yet, or nobody has told us
            if claim(run.folder, None):
                self._ended(run, None)
                return
            process = claimed_by(run.folder)
            if process is not None:
                run.has_driver(process, process.open())
        if run.pidfd is not None:
            send(run.pidfd, signal.SIGTERM)
            send(run.pidfd, signal.SIGCONT)  # a driver that was stopped ends all that its program has started
        self._later(run, _CANCEL_GRACE, lambda: self._kill(run))

    def _kill(self, run: Run) -> None:
        """End a driver that does not end; an interpreter that then does not tell of its end is broken."""
        if run.pidfd is not None:
            send(run.pidfd, signal.SIGKILL)
        if run.driven:
            self._later(run, _CANCEL_GRACE, self._fork_server.kill)

    def _later(self, run: Run, seconds: float, action: Callable[[], None]) -> None:
        run.timers.append(asyncio.get_running_loop().call_later(seconds, action))

    def _heard(self, message: Message) -> None:
        """The fork server forked a driver, or one has ended."""
        run = self.runs.get(message["run"])
        if run is None or not run.active or run.ending:
            return  # its driver finds that nobody waits for it
        process = ProcessId(message["pid"], message["start_time"])
        if "status" in message:
            claimant = claimed_by(run.folder)
            if claimant is None or claimant == process:
                self._ended(run, message["status"])
            elif run.process == process:  # a driver of an earlier fork server was first
                self._watch(run, "")
        elif run.process is None:
            run.has_driver(process, process.open())
            self.changed.tell()

    def _fork_server_died(self) -> None:
        """Watch the drivers that it has forked, and have another one fork those that it has not."""
        for run in list(self.runs.values()):
            if not (run.active and run.driven) or run.ending:
                continue
            if run.process is None and claimed_by(run.folder) is None and run.fork_servers < _FORK_SERVERS:
                self._request_driver(run)
                continue
            run.driven = False
            self._watch(run, "with the interpreter that was to start it")

    def _ended(self, run: Run, status: int | None, why: str = "") -> None:
        if run.ending:
            return
        run.ending = True
        run.forget_driver()
        run.forget_timers()
        finishing = asyncio.ensure_future(self._finish(run, status, why))
        self._background.add(finishing)
        finishing.add_done_callback(self._background.discard)

    async def _finish(self, run: Run, status: int | None, why: str) -> None:
        """See to what a run leaves: its variables on the tasks, the file that was sent, its record."""
        if run.process is not None:
            try:
                if status != 0 and run.record.stopping is None:
                    await self._look()
                await self._clear(run.identity)
            except Exception:  # into the agent's log; the run ends all the same
                traceback.print_exc()
        shutil.rmtree(run.sent, ignore_errors=True)
        log = self._fork_server.log if run.process is None else run.output
        run.record = conclude(run, status, why, log)
        self._write(run)
        self.changed.tell()

    def _write(self, run: Run) -> None:
        try:
            self.records.write(run.record)
        except OSError as error:  # a full disk costs the record, not the run
            print(f"{run.folder}: cannot write the run's record: {error.strerror}", file=sys.stderr, flush=True)
