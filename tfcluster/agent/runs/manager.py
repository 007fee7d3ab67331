"""Manages the lifecycle of runs: feeds each run's state machine, takes the actions that it requests, and cleans up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tfcluster import boot, settings
from tfcluster.agent import subprocesses
from tfcluster.agent.event_loop import BackgroundTasks, ChangeNotifier, FolderWatcher, Turn
from tfcluster.agent.logs.tail import last_lines, tail
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.state_machine import RunAction, RunMachineEvent, RunPhase, RunStateMachine
from tfcluster.agent.runs.store import RunRecord, RunStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.subprocesses import HelperProcess, fork_child
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.run_events import (
    ErrorEvent,
    ImportedEvent,
    ImportingEvent,
    ResultEvent,
    StoppedEvent,
    SubmittedEvent,
    parse_event,
)
from tfcluster.core.states import ACTIVE_RUN_STATES, ENDED_RUN_STATES, RunState
from tfcluster.core.status import RunStatus
from tfcluster.core.text import group_problems, join_problems
from tfcluster.core.topology import LogLimits, short_task_name
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.daemonize import detach
from tfcluster.os.process_handle import ProcessHandle, format_exit_status, was_killed
from tfcluster.paths import code_cache
from tfcluster.processes.runs import fork_server
from tfcluster.processes.runs.run_plan import RunPlan, acquire_run, append_event, driver_of, release_run
from tfcluster.processes.runs.stored_output import free_all, stored_bytes
from tfcluster.protocol.codec import Message
from tfcluster.protocol.serialization import to_json
from tfcluster.version import PROTOCOL


class ForkServer(HelperProcess):
    """Starts the fork server and has it fork drivers.

    The fork server is started when the cluster is ready, so that TensorFlow is imported before the first run, and
    restarted after it died. With `warm: false` it is started at the first run and does not import TensorFlow. While a
    signal has stopped it, it would fork no drivers.

    Args:
        log: The file that receives the fork server's output.
        on_message: Called with each message about a run; see `tfcluster.processes.runs.fork_server`.
        on_import: Called when the fork server has imported TensorFlow.
        on_exit: Called when the fork server has exited. Its drivers keep running.
    """

    def __init__(
        self,
        title: str,
        log: Path,
        on_message: Callable[[Message], None],
        on_import: Callable[[], None],
        on_exit: Callable[[], None],
    ) -> None:
        super().__init__(title, log)
        self.log = log
        self.is_importing = False  # it is importing TensorFlow, and starts no driver until it has
        self.is_warm: Callable[[], bool] = lambda: True  # returns whether one that is started now imports TensorFlow
        self._on_message = on_message
        self._on_import = on_import
        self._on_exit = on_exit

    def run(self, agent: socket.socket) -> None:
        """Replace the process, which is a fork of the agent, by a new interpreter that runs the fork server.

        A program ends with a regular shutdown of its interpreter, which destroys all objects in it. The agent's must
        not be among them.
        """
        os.set_inheritable(agent.fileno(), True)
        arguments = [self.title, str(agent.fileno()), str(code_cache()), *[fork_server.WARM] * self.is_warm()]
        boot.exec_function(fork_server.__name__, fork_server.main.__name__, arguments)

    def end(self) -> None:
        """End the fork server, so that the next run gets another one; its drivers keep running."""
        self.stop()
        self._on_exit()

    def handle_start(self) -> None:
        """Note that it begins to import TensorFlow, if it does."""
        self.is_importing = self.is_warm()

    def handle_message(self, message: Message) -> None:
        """Pass on a message about a run, or that TensorFlow has been imported."""
        if message == fork_server.IMPORTED:
            self.is_importing = False
            self._on_import()
        else:
            self._on_message(message)

    def handle_exit(self) -> None:
        """Tell that the fork server has exited."""
        self._on_exit()


def final_record(run: Run, log: Path) -> RunRecord:
    """Build the final record of a run that has ended, and write a result event if its driver wrote none.

    `log` is the log whose last lines may show why the driver died.
    """
    last = _final_event(run.events)
    if isinstance(last, ResultEvent):  # a driver writes it only if the run succeeded
        state = RunState.SUCCEEDED
        return replace(run.record, state=state, seconds=last.seconds, result=last.result, ended=_end_of(run))
    error: dict[str, Any] | None
    if run.record.stopping is not None:
        state, error = run.record.stopping
    elif isinstance(last, ErrorEvent):
        state, error = RunState.FAILED, last.error
        if error["exit_code"] == ExitCode.INTERRUPTED:
            state, error = RunState.CANCELLED, None
    else:
        state, error = RunState.FAILED, _driver_error(run, log).to_json()
    if error is not None:
        error = _with_losses(error, run)
    result = None if last is None else last.result
    has_own_exit = state is RunState.CANCELLED and "signal" not in (result or {})  # a script that handles SIGTERM
    if run.record.stopping is not None and result is not None and not has_own_exit:
        result = {name: value for name, value in result.items() if name in ("metrics", "trials")} or None
    ended = _end_of(run) if last is not None else round(time.time(), 3)
    record = replace(run.record, state=state, seconds=run.snapshot().seconds, error=error, result=result, ended=ended)
    try:
        append_event(run.events, result_event(record))
    except OSError as problem:  # a full disk must not prevent the run from ending
        record = replace(record, notes=[*record.notes, f"{run.events} cannot be written: {problem.strerror}"])
    return record


def _end_of(run: Run) -> float:
    """Return when the driver of a run has written its last event: an agent that began later records the end too."""
    return round(run.events.stat().st_mtime, 3)


_RERUN = "`tfcluster rerun {}` runs it again: from its last checkpoint, if it saves any."


def _with_losses(error: dict[str, Any], run: Run) -> dict[str, Any]:
    """Add to the error of a run the tasks that it has lost, which come first, or else those that might be its cause.

    TensorFlow's own errors seldom name them. Of the error itself the first line remains: the output of the run has all
    of it.
    """
    first, message = error["message"].partition("\n")[0], error["message"]
    # The reason why this agent has stopped a run may say more of a task than that it does not answer.
    named = {task for task in run.losses if run.record.stopping is not None and short_task_name(task) in message}
    unnamed = [problem for task, problem in run.losses.items() if task not in named]
    if all(problems in message for problems in group_problems(unnamed)):
        unnamed = []
    if losses := group_problems(problem for problem in unnamed if problem not in message):
        failed = [short_task_name(task) for task, problem in run.losses.items() if problem.endswith("has failed")]
        start = f"`tfcluster restart {' '.join(failed)}`, then " if failed else ""
        again = start + _RERUN.format(run.id)
        hint = " ".join(filter(None, [again, error["hint"]]))
        return {**error, "message": f"{'; '.join(losses)}\nafter that, {first}", "hint": hint}
    if suspects := [problem for problem in run.suspects.values() if problem not in message]:
        hint = error["hint"] or "`tfcluster status` shows the tasks, `tfcluster events` what happened to them."
        return {**error, "message": f"{first}\nduring {run.id}: {join_problems(suspects)}", "hint": hint}
    return error


def result_event(record: RunRecord) -> ResultEvent:
    """Return the result event of a run that has ended and whose driver wrote no result event."""
    seconds = round(record.seconds or 0.0, 6)
    return ResultEvent(
        record.run, record.options.program, record.state.value, seconds, record.result, {}, record.notes, record.error
    )


def _driver_error(run: Run, log: Path) -> ClusterError:
    """Return the error of a run whose driver died without an explanation."""
    cause = run.exit_cause if run.exit_status is None else format_exit_status(run.exit_status)
    if run.memory is not None and was_killed(run.exit_status):
        cause += run.memory.describe()
    lines = last_lines(log, settings.IO_BLOCK_BYTES, settings.RUN_ERROR_LINES)
    shown = "; its last output:" + "".join(f"\n  {line}" for line in lines) if lines else ""
    return ClusterError(f"the driver of {run.id} died ({cause}){shown}", hint=f"The whole log is {log}.")


def _final_event(path: Path) -> ResultEvent | ErrorEvent | StoppedEvent | None:
    """Return the last event that a driver wrote, which says how its program has ended; None if it wrote none."""
    lines, _ = tail(path, settings.RUN_RESULT_EVENTS)
    for line in reversed(lines):
        try:
            event = parse_event(json.loads(line))
        except (ValueError, KeyError, TypeError):  # a full disk has truncated it
            continue
        if isinstance(event, (ResultEvent, ErrorEvent, StoppedEvent)):
            return event
    return None


def remove_old_runs(store: RunStore, active: Collection[str], output_limit: int) -> None:
    """Remove the folders of old runs, and output of the others, in a child process: there may be many large files.

    A failure only goes into the agent's log: the next run tries it again.

    `active` has the ids of the runs that have not ended. `output_limit` is the bytes that the stored output of all runs
    may take.
    """
    agent_pid = os.getpid()

    def remove(link: socket.socket) -> None:
        detach("tfcluster: removal of old runs", keep=[link.fileno()], parent=agent_pid)
        store.remove_old(active)
        free_old_output(store, active, output_limit)

    try:
        if store.has_old(active) or sum(_output_sizes(store).values()) > output_limit:
            child = fork_child(remove, lambda status: child.close_pipe())
    except OSError as error:
        _logger.error("%s: cannot remove old runs: %s", store.path, error.strerror)


def _output_sizes(store: RunStore) -> dict[str, int]:
    """Return the size of the stored output of each run."""
    return {folder.name: stored_bytes(folder) for folder in store.path.iterdir()} if store.path.exists() else {}


def free_old_output(store: RunStore, active: Collection[str], limit: int) -> None:
    """Free the stored output of the oldest runs that have ended, until that of all runs is within a limit."""
    sizes = _output_sizes(store)
    excess = sum(sizes.values()) - limit
    for record in store.read_all():
        if excess > 0 and record.run not in active and record.state in ENDED_RUN_STATES:
            with contextlib.suppress(OSError):
                free_all(store.folder(record.run))
            excess -= sizes.get(record.run, 0) - stored_bytes(store.folder(record.run))


class ContainerCleaner:
    """Clears the resource containers of runs, with their variables, on all servers.

    The supervisor's event log records each server that never answered.
    """

    def __init__(self, supervisor: TaskSupervisor, prober: ProbeClient) -> None:
        self._supervisor = supervisor
        self._prober = prober

    async def clear(self, container: str) -> None:
        """Clear a container, whose name is its run's id, on every task; retry if a task does not answer in time.

        A server that has been replaced since is skipped: a new one has nothing to clear.
        """
        remaining, timeout = self._servers(), settings.RUN_CLEANUP_TIMEOUT_SECONDS
        for delay in (0.0, *settings.RUN_CLEANUP_BACKOFF_SECONDS):
            await asyncio.sleep(delay)
            present = self._servers().items()
            same = [server for server in remaining.items() if server in present]
            requests = [self._prober.probe(address, timeout, clear=container) for (_, address), _ in same]
            results = zip(same, await asyncio.gather(*requests), strict=True)
            remaining = dict(server for server, result in results if result.outcome is not ProbeOutcome.PROBE_OK)
            if not remaining:
                return
        for short, _ in remaining:
            detail = f"the server still holds the variables of {container}"
            self._supervisor.history.record("cleanup-failed", task=short, detail=detail)

    def _servers(self) -> dict[tuple[str, str], ProcessHandle | None]:
        """Return the processes of the servers by their tasks' short names and addresses; None for another host's."""
        topology, tasks = self._supervisor.topology, self._supervisor.tasks.values()
        remote = [task for task in topology.tasks if task.host != self._supervisor.host] if topology else []
        local = {(task.spec.short, task.spec.address): task.process for task in tasks if task.process}
        return {**local, **{(task.short, task.address): None for task in remote}}


# Why a run is stopped: the state that it will end in, and the error, if any.
_StopReason = tuple[RunState, ClusterError | None]

_logger = logging.getLogger(__name__)


class RunManager:
    """Manages the runs that are active and the runs that have ended since this agent started.

    Args:
        clear: Clears a resource container on every task.
        check_tasks: Probes for lost tasks that this agent does not know of yet, and passes them to `on_task_health`;
            returns why other tasks may be the cause of a failure: they have just not answered.
    """

    def __init__(
        self,
        title: str,
        folder: StateDir,
        clear: Callable[[str], Awaitable[None]],
        check_tasks: Callable[[], Awaitable[Mapping[str, str]]],
    ) -> None:
        self.runs: dict[str, Run] = {}  # the runs by id, oldest first
        self.earlier: list[RunStatus] = []  # the runs that had ended when this agent started, oldest first
        self.store = RunStore(folder.runs)
        self.changed = ChangeNotifier()  # notified whenever the state of any run changes
        self.watcher = FolderWatcher()  # notifies each run of what is written to its folder, while it is followed
        self._clear = clear
        self._check_tasks = check_tasks
        self.fork_server = ForkServer(
            title, folder.fork_server_log, self._on_driver_message, self._on_import, self._on_fork_server_exit
        )
        # Called with the final record of each run that ends.
        self.on_end: Callable[[RunRecord], None] = lambda record: None
        # Returns what a script waits for, in one line, and hints.
        self.explain_wait: Callable[[Run], Awaitable[tuple[str, str]]] = _explain_nothing
        self.log_limits: Callable[[], LogLimits] = LogLimits  # returns how much output is kept
        self._background = BackgroundTasks()
        self._actions: Mapping[RunAction, Callable[[Run], None]] = {
            RunAction.REQUEST_DRIVER: self._request_driver,
            RunAction.CLAIM: self._claim,
            RunAction.WATCH: self._watch,
            RunAction.TERMINATE: Run.terminate,
            RunAction.KILL: Run.kill,
            RunAction.KILL_FORK_SERVER: self._kill_fork_server,
            RunAction.FINALIZE: self._finalize,
        }

    def submit(self, plan: RunPlan, detached: bool) -> Run:
        """Register and record a new run. Its timeout starts now; `start` starts its driver.

        `detached` says whether the run continues when no command waits for it. Raises OSError: the run cannot be
        recorded.
        """
        run = Run(RunRecord.new(plan, detached), plan.folder, plan)
        append_event(run.events, SubmittedEvent(plan.run, plan.options.program, plan.devices, plan.first_notes or None))
        self.store.write(run.record)
        self._register(run)
        ended = [each.id for each in self.runs.values() if not each.is_active]
        for run_id in ended[: -settings.RUNS_KEPT]:
            del self.runs[run_id]
        self._remove_old()
        return run

    def _remove_old(self) -> None:
        active = [each.id for each in self.runs.values() if each.is_active]
        ended = len(self.runs) - len(active)
        self.earlier = self.earlier[max(0, len(self.earlier) + ended - settings.RUNS_KEPT) :]
        remove_old_runs(self.store, active, self.log_limits().runs)

    def forget_part(self, run_id: str) -> bool:
        """Have the folder of a part of a run ready for another attempt; return False if the run is none, or active."""
        record = self.runs[run_id].record if run_id in self.runs else self.store.read(run_id)
        if record is None or not record.is_part or record.state in ACTIVE_RUN_STATES:
            return False
        self.runs.pop(run_id, None)
        release_run(self.store.folder(run_id))
        return True

    def start(self, run: Run) -> None:
        """Request a driver for a run, unless one was requested already or the run is being stopped."""
        self._feed(run, RunMachineEvent.START)

    def adopt(self, since: float = 0.0) -> None:
        """Adopt the runs of an earlier agent: watch drivers that still run, finalize and clean up what has ended.

        `since` is the time at which the cluster was started; runs that have ended before are not shown in its status.
        """
        records = self.store.read_all()
        ended = (each for each in records if each.state in ENDED_RUN_STATES and each.started >= since)
        self.earlier = [each.status() for each in ended if not each.is_part]
        for record in records:
            if record.has_variables:
                self._background.start(self._clear_variables, record)
            if record.state not in ACTIVE_RUN_STATES:
                continue
            if record.protocol != PROTOCOL and not record.detached:
                # The command that waits for it cannot connect to this agent, nor to a later one.
                record = replace(record, detached=True)
                self.store.try_write(record)
            run = Run.adopt(record, self.store.folder(record.run))
            self._register(run)
            if not record.detached:
                run.orphan_timer.set(settings.RUN_OWNER_RECONNECT_SECONDS, self.cancel, record.run)
            run.exit_cause = "its agent died before the driver had started"
            if not self._is_startable(run):
                self._feed(run, RunMachineEvent.FORK_SERVER_EXITED)
                continue
            run.machine = RunStateMachine()
            if record.detached:  # perhaps a command follows it nevertheless, from another machine
                error = ClusterError(f"the agent of {run.id} died before it had started", hint=_RERUN.format(run.id))
                run.orphan_timer.set(settings.RUN_OWNER_RECONNECT_SECONDS, self.fail, run, error)

    def _is_startable(self, run: Run) -> bool:
        """Claim a run of an earlier agent for no driver; return whether it can be started, as nothing of it has run."""
        options = run.record.options
        has_upload = options.upload is None or (run.upload / options.upload_name).exists()
        if run.record.stopping is not None or run.record.is_part or not has_upload:
            return False
        try:
            return acquire_run(run.folder, None) or driver_of(run.folder) is None
        except OSError:  # such as a full disk
            return False

    def start_again(self, run: Run, plan: RunPlan) -> None:
        """Start a run that is unstarted by a new plan, under its id; raise OSError if its claim cannot be removed."""
        release_run(run.folder, has_ended=False)
        run.use(plan)
        run.record = replace(RunRecord.new(plan, run.record.detached), started=run.record.started)
        if run.record.detached:
            run.orphan_timer.cancel()
        self.store.try_write(run.record)
        self.start(run)

    def statuses(self) -> tuple[RunStatus, ...]:
        """Return what the status of the cluster says of its runs, the oldest first."""
        return (*self.earlier, *(run.status() for run in self.runs.values() if not run.record.is_part))

    def cancel(self, run_id: str) -> None:
        """Cancel a run. Does nothing if the run has ended or is unknown."""
        if run_id in self.runs:
            self._feed(self.runs[run_id], RunMachineEvent.CANCEL, (RunState.CANCELLED, None))

    def warn_of_end(self, reason: str) -> None:
        """End every active run, as this host ends soon; none is killed while it saves its state."""
        error = ClusterError(reason, hint="`tfcluster up`, then `tfcluster rerun`.")
        for run in self.runs.values():
            if run.is_active and run.record.stopping is None:
                self._record_stop(run, (RunState.FAILED, error))
                run.warn_of_end()

    def fail(self, run: Run, error: ClusterError) -> None:
        """Stop a run because of an error."""
        self._feed(run, RunMachineEvent.FAIL, (RunState.FAILED, error))

    def on_task_health(self, every: Collection[str], down: Mapping[str, str]) -> None:
        """Stop the runs that cannot continue without the tasks that are down.

        `every` has the names of all tasks, and `down` says what happened to each task that does not serve.
        """
        for run in list(self.runs.values()):
            if run.is_active:
                run.fail_if_blocked(every, down, self.fail)

    def record(self, run_id: str) -> RunRecord:
        """Return the record of a run, active or not; raise a ClusterError if there is none."""
        record = self.runs[run_id].record if run_id in self.runs else self.store.read(run_id)
        if record is None:
            raise ClusterError(f"no result recorded for {run_id}")
        return record

    async def all_records(self) -> list[RunRecord]:
        """Return the current record of every run that this host leads, sorted by the time of submission."""
        records, turn = [], Turn()
        for name in self.store.names():
            record = self.store.read(name)
            if record is not None and not record.is_part:
                records.append(self.runs[name].snapshot() if name in self.runs else record)
            await turn.pause()
        return sorted(records, key=lambda record: record.started)

    def tasks_in_use(self, every: Collection[str]) -> dict[str, list[str]]:
        """Return the names of the tasks that each active run uses, by the run's id."""
        active = {run_id: run.record for run_id, run in self.runs.items() if run.is_active}
        return {run_id: sorted(record.options.used_tasks(record.devices, every)) for run_id, record in active.items()}

    async def cancel_all(self) -> None:
        """Cancel every active run and wait until all of them have ended."""
        for run in self.runs:
            self.cancel(run)
        while any(run.is_active for run in self.runs.values()):
            await self.changed.wait_for_change(self.changed.count)

    def _register(self, run: Run) -> None:
        self.runs[run.id] = run
        if (timeout := run.record.options.timeout) is not None:
            remaining = max(0.0, run.record.started + timeout - time.time())
            run.timeout_timer.set(remaining, self._background.start, self._time_out, run, timeout)

    async def _time_out(self, run: Run, timeout: float) -> None:
        """End a run whose time is over, with what it waits for."""
        text = hint = ""
        try:
            if run.record.options.is_script:
                async with asyncio.timeout(settings.WAIT_TIMEOUT_SECONDS):
                    text, hint = await self.explain_wait(run)
        except TimeoutError:
            pass
        except Exception:  # goes into the agent's log; the run ends nevertheless
            _logger.exception("%s could not be examined", run.id)
        message = f"{run.id} timed out after {timeout:g} s"
        self.fail(run, ClusterError(f"{message}: {text}" if text else message, hint=hint, exit_code=ExitCode.TIMED_OUT))

    def _feed(self, run: Run, event: RunMachineEvent, stop_reason: _StopReason | None = None) -> None:
        """Pass an event to a run's state machine and take the actions that it requests.

        `stop_reason` says why the run is stopped, for an event that may stop it.
        """
        phase = run.machine.phase
        run.machine, actions = run.machine.handle(event)
        if run.machine.phase is not phase:
            self._set_phase_timer(run)
        for action in actions:
            if action is not RunAction.RECORD_STOP:
                self._actions[action](run)
            elif run.record.stopping is None and stop_reason is not None:  # the first reason stands
                self._record_stop(run, stop_reason)
        if run.machine.phase is not phase:
            run.changed.notify()
            self.changed.notify()

    def _record_stop(self, run: Run, reason: _StopReason) -> None:
        state, error = reason
        run.record = replace(run.record, stopping=(state, error.to_json() if error else None))
        self.store.try_write(run.record)

    def _set_phase_timer(self, run: Run) -> None:
        """Replace the timer of the previous phase by one for the time limit of the present phase, if it has one."""
        run.phase_timer.cancel()
        limits = dict.fromkeys((RunPhase.STOPPING, RunPhase.KILLED), settings.RUN_STOP_GRACE_SECONDS)
        limits[RunPhase.REQUESTED] = settings.RUN_DRIVER_START_SECONDS
        if (limit := limits.get(run.machine.phase)) is not None:
            run.phase_timer.set(limit, self._on_timeout, run)

    def _on_timeout(self, run: Run) -> None:
        error = ClusterError(
            f"no driver could be started for {run.id} within {settings.RUN_DRIVER_START_SECONDS:g} s",
            hint=f"{self.fork_server.log} might show why; run the program again.",
        )
        self._feed(run, RunMachineEvent.TIMEOUT, (RunState.FAILED, error))

    def _on_driver_message(self, message: Message) -> None:
        """Handle a message of the fork server: it has forked a driver, or could not, or a driver has exited."""
        run = self.runs.get(message["run"])
        if run is None or run.has_exited:
            return  # its driver finds the run claimed and exits by itself
        if "error" in message:
            self.fail(run, ClusterError(f"no driver could be started for {run.id}: {message['error']}"))
            return
        process = ProcessHandle(message["pid"], message["start_time"])
        if "status" not in message:
            if run.process is None:
                run.attach_driver(process, process.open())
                self._feed(run, RunMachineEvent.DRIVER_STARTED)
        elif driver_of(run.folder) in (None, process):
            run.exit_status = message["status"]
            self._feed(run, RunMachineEvent.DRIVER_EXITED)
        elif run.process == process:  # a driver of an earlier fork server claimed the run first
            self._feed(run, RunMachineEvent.DRIVER_FOUND)

    def _on_import(self) -> None:
        """Tell those who wait for TensorFlow that the fork server has imported it."""
        for run in self.runs.values():
            if run.machine.phase is RunPhase.REQUESTED:
                run.report(ImportedEvent())

    def _on_fork_server_exit(self) -> None:
        """Handle the exit of the fork server: watch the drivers that it forked, and request the missing ones again."""
        for run in list(self.runs.values()):
            if run.machine.phase is RunPhase.SUBMITTED or run.has_exited or run.is_watched:
                continue
            run.exit_cause = "the fork server that was to start it died"
            has_driver = driver_of(run.folder) is not None
            self._feed(run, RunMachineEvent.DRIVER_FOUND if has_driver else RunMachineEvent.FORK_SERVER_EXITED)

    def _on_driver_exit(self, run: Run, status: int | None) -> None:
        """Handle the exit of a driver that the agent itself watched."""
        run.pidfd = None  # the code that watched it has closed it
        run.exit_status, run.exit_cause = status, "exit status unknown"
        self._feed(run, RunMachineEvent.DRIVER_EXITED)

    def _request_driver(self, run: Run) -> None:
        assert run.plan is not None, "an adopted run is not started"
        try:
            self.fork_server.send(to_json(run.plan))
        except OSError as error:
            self.fail(run, ClusterError(f"no driver could be started for {run.id}: {error.strerror}"))
        except ValueError as error:  # a parameter is infinite or NaN, which JSON cannot represent
            self.fail(run, ClusterError(f"{run.id} cannot be sent to its driver: {error}"))
        else:
            if self.fork_server.is_importing:
                run.report(ImportingEvent())

    def _claim(self, run: Run) -> None:
        """Claim a run for no driver: a driver that starts later finds this claim and exits.

        If that fails, because the disk is full or the folder was deleted, a driver cannot claim the run either.
        """
        try:
            has_driver = not acquire_run(run.folder, None) and driver_of(run.folder) is not None
        except OSError as error:
            _logger.error("%s: cannot claim the run: %s", run.folder, error.strerror)
            has_driver = False
        self._feed(run, RunMachineEvent.DRIVER_FOUND if has_driver else RunMachineEvent.NO_DRIVER)

    def _watch(self, run: Run) -> None:
        """Watch the driver that a run's claim names; its exit is reported even if no fork server does so."""
        driver = driver_of(run.folder)
        if driver is not None and not run.is_watched:
            run.attach_driver(driver, subprocesses.watch_exit(driver, partial(self._on_driver_exit, run)))
            run.is_watched = True

    def _kill_fork_server(self, run: Run) -> None:
        if not run.is_watched:  # else the fork server has nothing to report
            self.fork_server.kill()

    def _finalize(self, run: Run) -> None:
        run.release_driver()
        run.cancel_timers()
        self._background.start(self._finalize_in_background, run)

    async def _finalize_in_background(self, run: Run) -> None:
        """Write the final record of a run, which has ended then, and have the tasks forget its variables after that."""
        had_driver = run.process is not None
        is_failure = run.exit_status != 0 and (run.record.stopping is None or run.record.stopping[0] is RunState.FAILED)
        if had_driver and is_failure:
            try:
                silent = await self._check_tasks()  # a lost task may be the reason of the failure
                used = self.tasks_in_use(silent)[run.id]
                run.suspects.update({task: why for task, why in silent.items() if task in used})
            except Exception:  # goes into the agent's log; the run ends nevertheless
                _logger.exception("the tasks could not be checked at the end of %s", run.id)
        shutil.rmtree(run.upload, ignore_errors=True)
        record = final_record(run, run.output if had_driver else self.fork_server.log)
        run.record = replace(record, has_variables=had_driver)
        try:  # before it is recorded: an agent that dies here leaves the run to the next one
            self.on_end(run.record)
        except Exception:
            _logger.exception("no notice of %s could be made", run.id)
        self.store.try_write(run.record)
        self._feed(run, RunMachineEvent.FINALIZED)
        self._remove_old()
        if had_driver:
            run.record = await self._clear_variables(run.record)

    async def _clear_variables(self, record: RunRecord) -> RunRecord:
        """Have the tasks forget the variables of a run that has ended, and record it; the next agent repeats it if not.

        Return the record as it is then.
        """
        try:
            await self._clear(record.run)
        except Exception:  # goes into the agent's log
            _logger.exception("the variables of %s could not be cleared", record.run)
            return record
        record = replace(record, has_variables=False)
        if self.store.folder(record.run).exists():  # it may have been removed meanwhile
            self.store.try_write(record)
        return record


async def _explain_nothing(run: Run) -> tuple[str, str]:
    return "", ""
