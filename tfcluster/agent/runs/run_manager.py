"""Lifecycle of runs: submits, stops and records runs, starts a driver process for each and adopts earlier runs."""

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

from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.agent.change_notifier import ChangeNotifier
from tfcluster.agent.runs import failure_policy
from tfcluster.agent.runs.fork_server_client import ForkServer
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.run_result import finalize, result_event
from tfcluster.agent.runs.run_store import RunRecord, RunStore
from tfcluster.agent.runs.run_stream import follow
from tfcluster.agent.state_dir import StateDir
from tfcluster.core.programs import compute_tasks, required_tasks
from tfcluster.core.states import ACTIVE, RunState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.process_handle import ProcessHandle, send
from tfcluster.processes.run_events import RunEventLog
from tfcluster.processes.run_spec import EVENTS, OUTPUT, RunSpec, acquire_run, driver_of
from tfcluster.protocol.codec import Message


class RunManager:
    """Manages the runs that are active and the runs that have ended since this agent started.

    Args:
        title: The process title of the fork server, which `ps` shows.
        folder: The cluster's state directory.
        clear: Clears a resource container on every task.
        look: Probes for lost tasks that are not reported to this agent, and passes them to `on_task_health`.

    Attributes:
        runs: The runs by id, oldest first.
        records: The persistent records of all runs, including earlier ones.
        changed: Notified whenever a run's state changes.
    """

    def __init__(
        self,
        title: str,
        folder: StateDir,
        clear: Callable[[str], Awaitable[None]],
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self.runs: dict[str, Run] = {}
        self.records = RunStore(folder.runs)
        self.changed = ChangeNotifier()
        self._clear = clear
        self._look = look
        self._fork_server = ForkServer(title, folder.fork_server_log, self._heard, self._fork_server_died)
        self._background: set[asyncio.Task[None]] = set()

    def warm_up(self) -> None:
        """Start the fork server, so that TensorFlow is imported before the next run.

        Raises:
            OSError: The fork server cannot be forked.
        """
        self._fork_server.warm_up()

    def submit(self, job: RunSpec, timeout: float | None, detached: bool) -> Run:
        """Register and record a new run. Its timeout starts now; `start` starts its driver.

        Args:
            job: What the driver is to run.
            timeout: Seconds after which the run is stopped; None for no timeout.
            detached: Whether the run continues when no command waits for it.

        Returns:
            The new run.

        Raises:
            OSError: The run cannot be recorded.
        """
        now = round(time.time(), 3)
        record = RunRecord(
            job.run,
            job.program,
            job.traits,
            job.parameters,
            job.devices,
            job.notes,
            now,
            timeout,
            detached,
            RunState.QUEUED,
            besides=required_tasks(job.traits, job.devices, job.addresses, job.head),
        )
        run = Run(record, Path(job.folder), job=job)
        RunEventLog(run.events).emit("run", run=job.run, program=job.program, devices=job.devices)
        self.records.write(record)
        self._take(run)
        self._forget_old()
        return run

    def start(self, run: Run) -> None:
        """Request a driver for a run, unless one was requested already or the run has ended.

        The run continues whether or not a client streams its events.
        """
        if run.active and not run.ending and not run.driven:
            self._request_driver(run)
            self._later(run, settings.RUN_DRIVER_START_SECONDS, partial(self._refuse_to_wait, run))

    def _request_driver(self, run: Run) -> None:
        assert run.job is not None, "who adopts a run does not start it"
        run.driven = True
        run.fork_servers += 1
        try:
            self._fork_server.drive(run.job)
        except OSError as error:
            self.fail(run, ClusterError(f"no driver could be started for {run.identity}: {error.strerror}"))

    def check_fork_server(self) -> int | None:
        """Kill the fork server if a signal has stopped it. Runs that wait for a driver get another fork server.

        Returns:
            The pid of the fork server that was killed, or None if it was not stopped.
        """
        return self._fork_server.kill_if_stopped()

    def adopt(self) -> None:
        """Adopt the active runs of an earlier agent: watch drivers that still run, finalize runs that have ended."""
        for record in self.records.read_all():
            if record.state in ACTIVE:
                folder = self.records.folder(record.run)
                run = Run(record, folder, began=time.monotonic() - (time.time() - record.started))
                self._take(run)
                if not record.detached:
                    loop = asyncio.get_running_loop()
                    run.unowned = loop.call_later(settings.RUN_OWNER_RECONNECT_SECONDS, self.cancel, record.run)
                self._watch(run, "its agent died before the driver had started")
                if run.record.stopping is not None and run.active:
                    self._terminate(run)

    async def follow(self, identity: str) -> AsyncGenerator[Message, None]:
        """Stream a run's events from the first one to its result, also for a run that has ended.

        Args:
            identity: The run's id.

        Yields:
            The events, as soon as they are written.

        Raises:
            ClusterError: There is no record of the run.
        """
        run = self.runs.get(identity)
        record = run.record if run is not None else self.records.read(identity)
        if record is None:
            raise ClusterError(f"of {identity} no record is left")
        folder = self.records.folder(identity)

        async def wait() -> None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.since(self.changed.count), settings.RUN_POLL_SECONDS)

        output = folder / OUTPUT if record.traits.is_script else None
        found = False
        async for event in follow(folder / EVENTS, output, lambda: run is not None and run.active, wait):
            found = event["event"] == "result"
            yield event
        record = record if run is None else run.record
        if not found and record.state not in ACTIVE:  # the disk was full when it was written
            yield result_event(record)

    def cancel(self, identity: str) -> None:
        """Cancel a run. Does nothing if the run has ended or is unknown."""
        if identity in self.runs:
            self._stop(self.runs[identity], RunState.CANCELLED, None)

    def mark_reclaimed(self, identity: str) -> None:
        """Record that the command which waits for a run has reconnected after its agent died.

        This cancels the timer that would stop the run.
        """
        run = self.runs.get(identity)
        if run is not None and run.unowned is not None:
            run.unowned.cancel()
            run.unowned = None

    def fail(self, run: Run, error: ClusterError) -> None:
        """Stop a run because of an error."""
        self._stop(run, RunState.FAILED, error)

    def on_task_health(self, every: Collection[str], down: Mapping[str, str]) -> None:
        """Stop the runs that cannot continue without the tasks that are down; see `failure_policy`.

        A driver may have failed because of a lost task before the agent noticed the loss. Its run then ends with the
        lost task as the reason.

        Args:
            every: Names of the cluster's tasks.
            down: What happened to each task that does not serve, as text, by the task's name.
        """
        for run in list(self.runs.values()):
            if run.active:
                failure_policy.consider(run, every, down, self.fail)

    def all_records(self) -> list[RunRecord]:
        """Return the current record of every run, sorted by the time of submission."""
        kept = self.records.read_all()
        return [self.runs[record.run].now() if record.run in self.runs else record for record in kept]

    def tasks_in_use(self, every: Collection[str]) -> dict[str, list[str]]:
        """Return the names of the tasks that each active run uses, by the run's id.

        Args:
            every: Names of the cluster's tasks.
        """
        active = {identity: run.record for identity, run in self.runs.items() if run.active}
        return {
            identity: sorted({*compute_tasks(record.traits, record.devices, every), *record.besides})
            for identity, record in active.items()
        }

    async def cancel_all(self) -> None:
        """Cancel every active run and wait until all of them have ended."""
        for run in list(self.runs.values()):
            self._stop(run, RunState.CANCELLED, None)
        while any(run.active for run in self.runs.values()):
            await self.changed.since(self.changed.count)

    def stop(self) -> None:
        """Stop the fork server. No run may be active when this is called."""
        self._fork_server.stop()

    def _take(self, run: Run) -> None:
        self.runs[run.identity] = run
        if (timeout := run.record.timeout) is not None:
            error = ClusterError(f"{run.identity} timed out after {timeout:g} s", exit_code=ExitCode.TIMED_OUT)
            left = run.record.started + timeout - time.time()
            self._later(run, max(0.0, left), partial(self.fail, run, error))

    def _forget_old(self) -> None:
        """Delete all but the latest ended runs, in memory and on disk."""
        ended = [identity for identity, run in self.runs.items() if not run.active]
        for identity in ended[: -settings.RUNS_KEPT]:
            del self.runs[identity]
        self.records.remove_old([identity for identity, run in self.runs.items() if run.active])

    def _watch(self, run: Run, why_none: str) -> None:
        """Watch the driver of a run whose exit no fork server will report.

        This is a driver of an earlier agent, or one of a fork server that has died.

        Args:
            run: The run.
            why_none: Why the run has no driver; used if it has none.
        """
        if acquire_run(run.folder, None):  # a driver that starts later finds this claim and exits
            self._ended(run, None, why_none)
            return
        process = driver_of(run.folder)
        if process is None:
            self._ended(run, None, why_none)
            return
        run.forget_driver()
        run.has_driver(process, subprocesses.when_ended(process, partial(self._driver_gone, run)))

    def _driver_gone(self, run: Run, status: int | None) -> None:
        run.pidfd = None  # the code that watched it has closed it
        self._ended(run, status, "nobody was there to see how")

    def _refuse_to_wait(self, run: Run) -> None:
        """Fail a run that still has no driver, and kill the fork server, so that the next run gets a new one."""
        if run.process is None:
            error = ClusterError(
                f"no driver could be started for {run.identity} within {settings.RUN_DRIVER_START_SECONDS:g} s",
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
        if run.process is None:  # no driver has started yet, or none has been reported yet
            if acquire_run(run.folder, None):
                self._ended(run, None)
                return
            process = driver_of(run.folder)
            if process is not None:
                run.has_driver(process, process.open())
        if run.pidfd is not None:
            send(run.pidfd, signal.SIGTERM)
            send(run.pidfd, signal.SIGCONT)  # a driver that was stopped ends all that its program has started
        self._later(run, settings.RUN_STOP_GRACE_SECONDS, lambda: self._kill(run))

    def _kill(self, run: Run) -> None:
        """Kill a driver that has not exited after SIGTERM.

        A fork server that does not report the driver's exit after that is broken and is killed too.
        """
        if run.pidfd is not None:
            send(run.pidfd, signal.SIGKILL)
        if run.driven:
            self._later(run, settings.RUN_STOP_GRACE_SECONDS, self._fork_server.kill)

    def _later(self, run: Run, seconds: float, action: Callable[[], None]) -> None:
        run.timers.append(asyncio.get_running_loop().call_later(seconds, action))

    def _heard(self, message: Message) -> None:
        """Handle a message of the fork server: it has forked a driver, or a driver has exited."""
        run = self.runs.get(message["run"])
        if run is None or not run.active or run.ending:
            return  # its driver finds the run claimed and exits by itself
        if "error" in message:
            self.fail(run, ClusterError(f"no driver could be started for {run.identity}: {message['error']}"))
            return
        process = ProcessHandle(message["pid"], message["start_time"])
        if "status" in message:
            claimant = driver_of(run.folder)
            if claimant is None or claimant == process:
                self._ended(run, message["status"])
            elif run.process == process:  # a driver of an earlier fork server claimed the run first
                self._watch(run, "")
        elif run.process is None:
            run.has_driver(process, process.open())
            self.changed.tell()

    def _fork_server_died(self) -> None:
        """Handle the death of the fork server: watch the drivers that it forked, and request the missing ones again."""
        for run in list(self.runs.values()):
            if not (run.active and run.driven) or run.ending:
                continue
            if run.process is None and driver_of(run.folder) is None and run.fork_servers < settings.RUN_FORK_SERVERS:
                self._request_driver(run)
                continue
            run.driven = False
            self._watch(run, "the fork server that was to start it died")

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
        """Clean up after a run: clear its variables on the tasks, delete the uploaded file, write its final record."""
        if run.process is not None:
            try:
                if status != 0 and run.record.stopping is None:
                    await self._look()
                await self._clear(run.identity)
            except Exception:  # goes into the agent's log; the run ends nevertheless
                traceback.print_exc()
        shutil.rmtree(run.sent, ignore_errors=True)
        log = self._fork_server.log if run.process is None else run.output
        run.record = finalize(run, status, why, log)
        self._write(run)
        self.changed.tell()

    def _write(self, run: Run) -> None:
        try:
            self.records.write(run.record)
        except OSError as error:  # a full disk costs the record, not the run
            print(f"{run.folder}: cannot write the run's record: {error.strerror}", file=sys.stderr, flush=True)
