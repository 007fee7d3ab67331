"""The agent's in-memory state of one run: driver, timers, and the reaction to lost tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.event_loop import ChangeNotifier, Timer
from tfcluster.agent.runs.stacks import find_processes
from tfcluster.agent.runs.state_machine import RunPhase, RunStateMachine
from tfcluster.agent.runs.store import RunRecord
from tfcluster.core.programs import tasks_with_addresses
from tfcluster.core.run_events import RunEvent, TaskDownEvent
from tfcluster.core.states import ACTIVE_RUN_STATES, RunState
from tfcluster.core.status import MemberStatus, RunStatus
from tfcluster.core.text import join_problems
from tfcluster.errors import ClusterError
from tfcluster.os.files import write_atomically
from tfcluster.os.process_handle import ProcessHandle, is_frozen, is_stopped_by_signal, send_signal
from tfcluster.os.procfs import OomDetector
from tfcluster.processes.groups.member_states import read_states, states_version
from tfcluster.processes.runs.run_plan import EVENTS, OUTPUT, TERMINAL_SIZE, UPLOAD, RunPlan, append_event


@dataclass
class Run:
    """The state of one run."""

    record: RunRecord
    folder: Path
    plan: RunPlan | None = None  # None for a run that an earlier agent started
    machine: RunStateMachine = field(default_factory=RunStateMachine)
    submitted_at: float = field(default_factory=time.monotonic)  # monotonic seconds
    changed: ChangeNotifier = field(default_factory=ChangeNotifier)  # when its state or a file in its folder changes
    process: ProcessHandle | None = None  # the driver's; None while there is no driver
    pidfd: int | None = None  # the driver's; None while there is no driver
    memory: OomDetector | None = None  # for the driver; None if there was none
    is_watched: bool = False  # the agent itself watches for the driver's exit: no fork server will report it
    exit_status: int | None = None  # the wait status of the driver, as waitpid returns it; None if it is not known
    exit_cause: str = ""  # how the driver ended, or why there was none; used if the exit status is not known
    phase_timer: Timer = field(default_factory=Timer)
    timeout_timer: Timer = field(default_factory=Timer)
    orphan_timer: Timer = field(default_factory=Timer)  # stops it unless the command that waits for it reconnects
    all_lost_timer: Timer = field(default_factory=Timer)  # stops it because all of its tasks are lost
    # What happened last to each task that went down during the run, by its name, in the order in which they did.
    losses: dict[str, str] = field(default_factory=dict)
    suspects: dict[str, str] = field(default_factory=dict)  # the same of tasks that might be why it has failed
    down: frozenset[str] = frozenset()  # names of tasks
    was_stopped: bool = False  # whether the driver had to be continued at the last check
    _members: tuple[MemberStatus, ...] = ()
    _members_version: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.plan is not None:
            self.use(self.plan)

    def use(self, plan: RunPlan) -> None:
        """Let the run be started by a plan."""
        self.plan, self.suspects = plan, dict(plan.missing)
        self.down = frozenset(self.suspects)

    @classmethod
    def adopt(cls, record: RunRecord, folder: Path) -> Run:
        """Return an active run that an earlier agent started; see `RunStateMachine` for its phase."""
        machine = RunStateMachine(RunPhase.RUNNING if record.stopping is None else RunPhase.CLAIMING)
        submitted_at = time.monotonic() - (time.time() - record.started)
        return cls(record, folder, machine=machine, submitted_at=submitted_at)

    @property
    def id(self) -> str:
        """The run's id."""
        return self.record.run

    @property
    def is_active(self) -> bool:
        """Whether the run has not ended."""
        return self.record.state in ACTIVE_RUN_STATES

    @property
    def is_unstarted(self) -> bool:
        """Whether an earlier agent died before its driver had started; it starts again when this agent has a plan."""
        return self.plan is None and self.machine.phase is RunPhase.SUBMITTED

    @property
    def has_exited(self) -> bool:
        """Whether the run has no driver any more, and will not get one."""
        return self.machine.phase in (RunPhase.FINALIZING, RunPhase.ENDED)

    @property
    def events(self) -> Path:
        """The file that holds the run's events."""
        return self.folder / EVENTS

    @property
    def output(self) -> Path:
        """The file that holds the output of the run's driver."""
        return self.folder / OUTPUT

    @property
    def upload(self) -> Path:
        """The folder that holds the file uploaded with the run."""
        return self.folder / UPLOAD

    def snapshot(self) -> RunRecord:
        """Return the run's record, with the seconds that the run has taken so far if it is active."""
        seconds = self.record.seconds
        if seconds is None:
            seconds = time.monotonic() - self.submitted_at
        return replace(self.record, seconds=round(seconds, 6))

    def status(self) -> RunStatus:
        """Return the run's entry in the output of `status`."""
        status = self.snapshot().status()
        if not self.is_active or self.record.options.jobs is None:
            return status
        version = states_version(self.folder)
        if version != self._members_version:  # to decode a thousand members takes 9 ms
            self._members_version = version
            self._members = tuple(
                MemberStatus(task, state.host, state.pid, state.exit_code)
                for task, state in read_states(self.folder).items()
            )
        return replace(status, members=self._members)

    def attach_driver(self, process: ProcessHandle, pidfd: int | None) -> None:
        """Record that the run's driver has been started.

        `pidfd` is None if the driver has exited already.
        """
        self.release_driver()
        self.record = replace(self.record, state=RunState.RUNNING)
        self.process, self.pidfd = process, pidfd
        self.memory = OomDetector(process.pid, time.monotonic())

    def warn_of_end(self) -> None:
        """Tell the driver that this host ends soon, unless it has exited."""
        if self.pidfd is not None:
            send_signal(self.pidfd, settings.HOST_END_SIGNAL)

    def terminate(self) -> None:
        """Send SIGTERM to the driver, unless it has exited."""
        if self.pidfd is not None:
            send_signal(self.pidfd, signal.SIGTERM)
            # If a signal had stopped the driver, it has to continue to terminate all that its program has started.
            send_signal(self.pidfd, signal.SIGCONT)

    async def continue_driver(self) -> bool:
        """Continue the driver if a signal has stopped it, since it would not notice the end of its program.

        If its program is stopped too, both stay so: the driver passes SIGCONT on, and the user may have stopped the
        program on purpose.

        Return whether it was continued, and did not need that at the previous call.
        """
        was_stopped, self.was_stopped = self.was_stopped, False
        if self.pidfd is None or self.process is None or not is_stopped_by_signal(self.process.pid):
            return False
        if any(map(is_frozen, await find_processes(self.process, self.folder, forked=False))) or self.pidfd is None:
            return False
        send_signal(self.pidfd, signal.SIGCONT)
        self.was_stopped = True
        return not was_stopped

    def interrupt(self) -> bool:
        """Send SIGINT to a script that runs; return False for any other run."""
        if self.pidfd is None or not self.record.options.is_script or self.machine.phase is not RunPhase.RUNNING:
            return False
        send_signal(self.pidfd, signal.SIGINT)  # the driver passes it on to its program
        return True

    def pass_signal(self, number: signal.Signals, columns: int, lines: int) -> None:
        """Send a script a signal.

        `columns` and `lines` are the size of the script's terminal, which changes with SIGWINCH.
        """
        if self.pidfd is not None and self.record.options.is_script:
            if number == signal.SIGWINCH:
                with contextlib.suppress(OSError):  # such as a full disk
                    write_atomically(self.folder / TERMINAL_SIZE, f"{columns} {lines}".encode())
            send_signal(self.pidfd, number)  # the driver passes it on

    def kill(self) -> None:
        """Send SIGKILL to the driver, unless it has exited."""
        if self.pidfd is not None:
            send_signal(self.pidfd, signal.SIGKILL)

    def release_driver(self) -> None:
        """Close the driver's pidfd, so that the driver is no longer watched."""
        if self.pidfd is not None:
            asyncio.get_running_loop().remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = None

    def fail_if_blocked(
        self, every: Collection[str], down: Mapping[str, str], fail: Callable[[Run, ClusterError], None]
    ) -> None:
        """Stop the run if all tasks that it uses have been down for `settings.RUN_ALL_TASKS_LOST_SECONDS`.

        The program itself handles the loss of some.

        `down` says what happened to each task that does not serve, such as `worker:1 died (SIGKILL)`.
        """
        used = self.record.options.used_tasks(self.record.devices, every)
        if not used:
            return
        self._note_losses({task: down[task] for task in used if task in down})
        if any(task not in down for task in used):
            self.all_lost_timer.cancel()
        elif self.all_lost_timer.handle is None:
            error = ClusterError(
                f"{join_problems(down[task] for task in used)} during {self.id}",
                hint=f"`tfcluster events` shows what happened, `tfcluster rerun {self.id}` runs the program again.",
            )
            self.all_lost_timer.set(settings.RUN_ALL_TASKS_LOST_SECONDS, fail, self, error)

    def _note_losses(self, down: Mapping[str, str]) -> None:
        """Note which tasks have gone down, and emit an event for each: a run may hang on one, or fail much later.

        Tasks that the cluster was given after the run had been submitted are left out.
        """
        known = None if self.plan is None else dict(tasks_with_addresses(self.plan.addresses))
        for task, problem in down.items():
            if task not in self.down and (known is None or task in known):
                self.losses[task] = problem
                self.report(TaskDownEvent(task, problem))
        self.down = frozenset(down)

    def report(self, event: RunEvent) -> None:
        """Emit an event, unless it cannot be stored."""
        with contextlib.suppress(OSError):  # such as a full disk
            append_event(self.events, event)

    def cancel_timers(self) -> None:
        """Cancel all timers that would stop or kill the run."""
        for timer in (self.phase_timer, self.timeout_timer, self.orphan_timer, self.all_lost_timer):
            timer.cancel()
