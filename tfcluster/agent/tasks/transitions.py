"""What the agent has of one task, and the transitions of its state machine, with what the journal and events need."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.event_loop import Timer
from tfcluster.agent.logs.tail import last_lines
from tfcluster.agent.meters import ProcessMeter
from tfcluster.agent.state.journal import TaskRecord
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.tasks.health import with_reason
from tfcluster.agent.tasks.machine import Action, TaskEvent, TaskStateMachine
from tfcluster.core.devices import Device
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES, TaskState
from tfcluster.core.status import NOT_STARTED, LastExit, TaskStatus
from tfcluster.core.topology import PS_JOB, Task
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.os.procfs import OomDetector
from tfcluster.paths import LOCAL_HOST

# What a text that stays says of a task whose process died: it is in the records of runs when the task serves again.
_AFTER_EXIT = {TaskState.BACKING_OFF: "", TaskState.STARTING: "", TaskState.FAILED: "has failed"}
# Whether a server answers is found out by probes: the journal does not distinguish these states.
_SERVER_STATES = frozenset({TaskState.STARTING, TaskState.READY, TaskState.UNRESPONSIVE})


@dataclass(eq=False)
class TaskRuntime:
    """The runtime state of one task; equal only to itself, so that it can be in sets."""

    spec: Task
    machine: TaskStateMachine
    log: Path  # the newest file of the task's rotating log
    log_buffer: Path  # the file that the task's process prints into, which the log writer copies to the log
    process: ProcessHandle | None = None
    pidfd: int | None = None
    started: float = 0.0  # Unix time in seconds at which the process was started
    generation: int = 0  # that of the topology in which the process was started
    devices: tuple[Device, ...] = ()  # as reported in the latest answer to a probe
    last_exit: LastExit | None = None  # that of the latest process; None if none has ended
    probe_error: str = ""  # why its process has not answered the latest probe; empty if it has, or none was sent
    startup_error: str = ""  # the error that the process reported while it started, or another explanation of its exit
    being_checked: bool = False  # whether a health check is in progress
    timer: Timer = field(default_factory=Timer)  # triggers the next event of the state machine
    meter: ProcessMeter | None = None  # of the process; None while there is no process
    memory: OomDetector | None = None  # for the process; None while there is no process
    killed: bool = False  # whether this agent has sent SIGKILL to the process

    def save(self) -> TaskRuntime:
        """Return a copy, for `restore`."""
        return copy(self)

    def restore(self, saved: TaskRuntime) -> None:
        """Set every attribute back to what it was when `save` returned the copy."""
        vars(self).update(vars(saved))

    def clear_process(self) -> None:
        """Clear all state of the task's process after it has exited."""
        self.process = self.pidfd = self.meter = self.memory = None
        self.probe_error = ""
        self.devices = ()

    def sample_usage(self) -> None:
        """Sample the resource usage and OOM counters of the task's process, to compare later values with them."""
        if self.meter is not None:
            self.meter.sample()
        if self.memory is not None:
            self.memory.sample(time.monotonic())

    def describe_problem(self) -> str:
        """Return why the task cannot serve, as text such as `ps:1 on alpha died (SIGKILL) and lost its variables`."""
        state = self.machine.state
        on_host = "" if self.spec.host == LOCAL_HOST else f" on {self.spec.host}"
        if state in (TaskState.READY, TaskState.UNRESPONSIVE) or (state is TaskState.STARTING and self.probe_error):
            return with_reason(f"{self.spec.short} at {self.spec.address}{on_host} does not answer", self.probe_error)
        name = self.spec.short + on_host
        lost = "lost its variables" if self.spec.job == PS_JOB else ""
        if state is TaskState.STOPPING and self.machine.restart_pending:
            return " and ".join(filter(None, [f"{name} was stopped by `tfcluster restart`", lost]))
        if self.last_exit is not None and self.last_exit.reason == NOT_STARTED:
            return f"{name} is {state.value}: {self.last_exit.detail}"
        if self.last_exit is not None and not self.last_exit.expected:
            detail = f": {self.last_exit.detail}" if self.last_exit.detail else ""
            then = filter(None, [lost, _AFTER_EXIT.get(state, f"is {state.value}")])
            return " and ".join([f"{name} died ({self.last_exit.reason}{detail})", *then])
        return f"{name} is {state.value}"

    def status(self) -> TaskStatus:
        """Return the task's entry in the output of `status`."""
        usage = self.meter.read() if self.meter is not None else None
        running = self.process is not None and self.machine.state in HAS_PROCESS
        ready = self.machine.state is TaskState.READY
        return TaskStatus(
            task=self.spec.name,
            job=self.spec.job,
            index=self.spec.index,
            host=self.spec.host,
            address=self.spec.address,
            state=self.machine.state,
            pid=self.process.pid if self.process else None,
            restarts=self.machine.restarts,
            uptime_s=round(max(0.0, time.time() - self.started), 1) if running else None,
            cpu_percent=self.meter.percent(usage) if usage is not None and self.meter is not None else None,
            rss_bytes=usage.rss_bytes if usage is not None else None,
            devices=tuple(device.name for device in self.devices) if ready else (),
            last_exit=self._last_exit_with_log(),
            probe_error=self.probe_error or None,
        )

    def _last_exit_with_log(self) -> LastExit | None:
        """Return how the latest process ended, with the end of the log if the task has stopped or failed."""
        if self.last_exit is None or self.machine.state not in TERMINAL_STATES:
            return self.last_exit
        return replace(self.last_exit, log=self.log_tail())

    def to_record(self) -> TaskRecord:
        """Return the task's record in the journal: what the next agent needs in order to adopt the task."""
        machine, state = self.machine, self.machine.state
        if self.process is not None and state in _SERVER_STATES:
            state = TaskState.STARTING
        return TaskRecord(
            process=self.process,
            started=self.started,
            restarts=machine.restarts,
            state=state,
            exit_times=machine.exit_times,
            # While there is a process, the deadline is that of its exit. It is not recorded: the next agent gives the
            # process the whole grace period again.
            deadline=machine.deadline if state is TaskState.BACKING_OFF else None,
            last_exit=self.last_exit,
            restart_pending=machine.restart_pending,
            generation=self.generation,
        )

    def log_tail(self) -> tuple[str, ...]:
        """Return the last lines of the task's log buffer, and of a long line only the end."""
        return tuple(last_lines(self.log_buffer, settings.FAILED_TASK_LOG_BYTES, settings.FAILED_TASK_LOG_LINES))


@dataclass(frozen=True)
class Transition:
    """A state transition that has been made."""

    task: TaskRuntime  # in its state after the transition
    event: TaskEvent
    before: TaskStateMachine  # before the transition
    action: Action | None  # what the state machine requested
    child: ChildProcess | None  # the process that was forked and waits to be released; None if none was forked
    obstacle: str = ""  # why the task could not be started, unless it has waited for the same reason before

    @property
    def is_visible(self) -> bool:
        """Whether the watchers of the task must be notified."""
        after = self.task.machine
        changed = (after.state, after.desired_running) != (self.before.state, self.before.desired_running)
        return changed or self.action is Action.SPAWN or bool(self.obstacle)

    @property
    def is_durable(self) -> bool:
        """Whether the transition must be written to the journal: the next agent could not find out about it.

        A task that is about to be restarted without a delay is written when it has its new process. If this agent dies
        before that, the next one sees that the process in the journal has exited, and restarts the task as well.
        """
        after = self.task.machine
        if after.state is TaskState.BACKING_OFF and self.delay == 0.0:
            return False
        if after.state in _SERVER_STATES and self.before.state in _SERVER_STATES:
            return self.action is Action.SPAWN
        return self.is_visible

    @property
    def delay(self) -> float | None:
        """Seconds until the task is restarted after its process has exited; None if it is not."""
        after = self.task.machine
        if after.deadline is None or self.event not in (TaskEvent.FAILED_EXIT, TaskEvent.CLEAN_EXIT):
            return None
        return max(0.0, after.deadline - after.exit_times[-1])

    def end_child(self) -> None:
        """Kill the process that was forked, which has not begun its work, and wait for its exit."""
        if self.child is not None:
            self.child.close_pipe()
            self.child.kill()
            self.child.wait()
            self.task.clear_process()

    def undo(self) -> None:
        """Kill the process that was forked, and set the task's state back to the one before the transition."""
        self.end_child()
        self.task.machine = self.before

    def describe(self) -> tuple[str, str] | None:
        """Return the name and the detail of the entry in the event log, or None if there is nothing to record."""
        task, after, event = self.task, self.task.machine, self.event
        if event is TaskEvent.BLOCKED:
            if after.state is TaskState.FAILED:
                return "failed", f"{NOT_STARTED}: {self.obstacle}"
            return ("blocked", self.obstacle) if self.obstacle else None
        if after.state is self.before.state:
            return self._describe_unchanged()
        exit_reason = task.last_exit.reason if task.last_exit else ""
        match after.state:
            case TaskState.STARTING:
                return "started", f"pid {task.process.pid}" if task.process else ""
            case TaskState.READY if self.before.state is TaskState.STARTING:
                return "ready", f"{max(0.0, time.time() - task.started):.2f} s after its start"
            case TaskState.READY:
                return "ready", "it answers again"
            case TaskState.UNRESPONSIVE:
                silence = f"it did not answer {after.failed_probes} times in a row"
                return "unresponsive", with_reason(silence, task.probe_error)
            case TaskState.BACKING_OFF:
                restart = f"backing off {self.delay:.2g} s" if self.delay else "restarting immediately"
                return "died", f"{exit_reason}; {restart}"
            case TaskState.FAILED if event is TaskEvent.UNSTARTABLE:
                return "failed", f"{exit_reason}: {task.startup_error}"
            case TaskState.FAILED:
                policy = after.policy
                limit = f"more than {policy.limit} restarts in {policy.window:g} s"
                return "failed", f"{exit_reason}; " + ("restart policy never" if policy.policy == "never" else limit)
            case TaskState.STOPPING:
                return "stopping", "restarting, requested by `tfcluster restart`" if after.restart_pending else ""
            case TaskState.STOPPED:
                return "stopped", exit_reason

    def _describe_unchanged(self) -> tuple[str, str] | None:
        """Describe a transition that has not changed the task's state."""
        task = self.task
        if self.event is TaskEvent.UNSTARTED and task.process is not None:
            return "started", f"pid {task.process.pid}; the agent had died before it released the process"
        if self.event is TaskEvent.PROBE_FAILED and task.machine.failed_probes < self.before.failed_probes:
            return "health-check-killed", with_reason("it does not answer", task.probe_error)
        return None


def restore(
    machine: TaskStateMachine, record: TaskRecord, now: float, probes: int
) -> tuple[TaskStateMachine, TaskEvent | None]:
    """Restore a task's state machine from its record.

    `now` is in monotonic seconds. `probes` is how many health checks there were time for since the task's process was
    started. Return the restored machine, and the event that must be dispatched to it next; None for no event.
    """
    machine = replace(machine, state=record.state, restarts=record.restarts, exit_times=record.exit_times)
    if record.state in TERMINAL_STATES:
        return machine, None
    if record.state is TaskState.BACKING_OFF:
        return replace(machine, deadline=now if record.deadline is None else record.deadline), None
    if record.state is TaskState.STOPPING and record.process is None:
        return replace(machine, state=TaskState.STOPPED), TaskEvent.START if record.restart_pending else None
    if record.state is TaskState.STOPPING:
        # The process needs another signal, and the machine requests that only for a task that is running.
        event = TaskEvent.RESTART if record.restart_pending else TaskEvent.STOP
        return replace(machine, state=TaskState.STARTING), event
    if record.process is None:
        return machine, TaskEvent.UNSTARTED if record.state is TaskState.STARTING else TaskEvent.FAILED_EXIT
    # The time that a server has to start does not begin again with each agent. One that is older than that counts as
    # ready until its probes fail.
    if probes < settings.FAILED_PROBES_MAX_STARTING - settings.FAILED_PROBES_MAX:
        return replace(machine, state=TaskState.STARTING, failed_probes=probes), None
    return replace(machine, state=TaskState.READY), None


def drop_unreleased(record: TaskRecord, unreleased: Callable[[], Collection[ProcessHandle]]) -> TaskRecord:
    """Return a task's record without its process if the earlier agent died before it released the process.

    Such a process exits by itself. It may not have done so yet, so it is killed here too. It is recognized by its
    session: a server first creates a session of its own, and a process that was not released is still in the session
    of its agent.

    `unreleased` returns the processes that have noted that they exit because they were not released.
    """
    process = record.process
    if record.state is not TaskState.STARTING or process is None or process.leads_session():
        return record
    if process.is_alive():
        process.kill()
    elif process not in unreleased():  # it was released, and has exited since
        return record
    return replace(record, process=None)
