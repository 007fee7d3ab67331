"""Dispatches events to the tasks' state machines: a transition leads to an action and to entries in journal and log."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from tfcluster.agent.change_notifier import ChangeNotifier
from tfcluster.agent.logs.cluster_logs import EventLog
from tfcluster.agent.state.journal import Journal
from tfcluster.agent.state.journal_record import to_record
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.tasks.state_machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_launcher import StartBlockedError, TaskLauncher
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TaskState
from tfcluster.core.status import NOT_STARTED, LastExit
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import send_signal

# The text that explains the exit of a process that the agent ended because of an event.
_EXIT_CAUSES = {
    TaskEvent.PROBE_FAILED: "it did not answer, so its agent ended it",
    TaskEvent.RESTART: "`tfcluster restart` ended it",
}
_logger = logging.getLogger(__name__)

# Whether a server answers is found out by probes: the journal does not distinguish these states.
_SERVER_STATES = frozenset({TaskState.STARTING, TaskState.READY, TaskState.UNRESPONSIVE})


@dataclass(frozen=True)
class Transition:
    """A state transition that has been made, and can be undone until it is in the journal."""

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

    def undo(self) -> None:
        """Undo the transition: restore the state machine, and end the process that was forked."""
        self.task.machine = self.before
        self.end_child()

    def end_child(self) -> None:
        """Kill the process that was forked, which has not begun its work, and wait for its exit."""
        if self.child is not None:
            self.child.close_pipe()
            self.child.kill()
            self.child.wait()
            self.task.clear_process()

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
                return "unresponsive", f"it did not answer {after.failed_probes} times in a row"
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
            return "health-check-killed", "it does not answer"
        return None


class TaskEventDispatcher:
    """Does what follows from the events of tasks.

    Args:
        changed: Notified whenever a task's state changes.
        write_snapshot: Writes a snapshot to the journal; raises a ClusterError if it cannot.

    Attributes:
        journal_obstacle: Why the last snapshot could not be written; empty if it was.
    """

    def __init__(
        self,
        journal: Journal,
        launcher: TaskLauncher,
        history: EventLog,
        changed: ChangeNotifier,
        topology: Callable[[], ClusterTopology],
        write_snapshot: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._launcher = launcher
        self._history = history
        self._changed = changed
        self._topology = topology
        self._write_snapshot = write_snapshot
        self.journal_obstacle = ""

    def dispatch(self, events: Iterable[tuple[TaskRuntime, TaskEvent]]) -> None:
        """Dispatch events to the tasks' state machines, and write the journal once for all transitions that result.

        A process that is forked begins its work when the journal contains it: if this agent dies, the next one can
        adopt it. If the journal cannot be written, the process is ended and the task waits until it can be.
        """
        transitions = [self.make_transition(task, event) for task, event in events]
        try:
            self._record(transitions)
        except ClusterError as error:
            _logger.error("%s", error.message)
            transitions = [self._withdraw(each) if each.child is not None else each for each in transitions]
        self.publish(transitions)
        self.release(transitions)

    def make_transition(self, task: TaskRuntime, event: TaskEvent) -> Transition:
        """Dispatch an event to a task's state machine, and take the action that it requests.

        A process that is forked waits to be released. A task that cannot be started now waits until it can be.
        """
        before = task.machine
        task.machine, action = before.handle(event, time.monotonic(), random.random())
        try:
            child = self._act(task, event, action) if action is not None else None
        except StartBlockedError as obstacle:
            return self._wait(task, event, before, str(obstacle))
        self.set_timer(task)
        return Transition(task, event, before, action, child)

    def _withdraw(self, transition: Transition) -> Transition:
        """Let a task wait whose process is not in the journal."""
        transition.end_child()
        return self._wait(transition.task, transition.event, transition.before, self.journal_obstacle)

    def _wait(self, task: TaskRuntime, event: TaskEvent, before: TaskStateMachine, obstacle: str) -> Transition:
        """Let a task wait that cannot be started now; its status and the event log say why."""
        task.machine, _ = task.machine.handle(TaskEvent.BLOCKED, time.monotonic(), random.random())
        if task.machine.state is TaskState.BACKING_OFF:
            obstacle = f"waiting: {obstacle}"
        is_new = event is not TaskEvent.TIMER or task.startup_error != obstacle
        if is_new:
            task.startup_error, task.last_exit = obstacle, LastExit(NOT_STARTED, time.time(), obstacle)
        self.set_timer(task)
        return Transition(task, TaskEvent.BLOCKED, before, None, None, obstacle if is_new else "")

    def _act(self, task: TaskRuntime, event: TaskEvent, action: Action) -> ChildProcess | None:
        """Fork a task's process and return it, or send a signal to it.

        Raises:
            StartBlockedError: No process can be started now.
        """
        if action is Action.SPAWN:
            if event is TaskEvent.TIMER and self.journal_obstacle:  # the agent tries to write it once a second
                raise StartBlockedError(self.journal_obstacle)
            return self._launcher.fork(task, self._topology())
        if task.pidfd is not None:
            send_signal(task.pidfd, signal.SIGTERM if action is Action.TERMINATE else signal.SIGKILL)
            task.killed = task.killed or action is Action.KILL
            task.startup_error = _EXIT_CAUSES.get(event, task.startup_error)
        return None

    def _record(self, transitions: Iterable[Transition]) -> None:
        """Append to the journal the tasks whose transitions the next agent must know."""
        tasks = {each.task.spec.name: to_record(each.task) for each in transitions if each.is_durable}
        with suppress(OSError):  # only a snapshot can follow, which fails as well
            if not tasks or self._journal.append(tasks):
                return
        self._write_snapshot()

    def publish(self, transitions: Iterable[Transition]) -> None:
        """Record transitions in the event log, and notify those who watch the cluster."""
        for each in transitions:
            if (description := each.describe()) is not None:
                self._history.record(description[0], task=each.task.spec.short, detail=description[1])
        if any(each.is_visible for each in transitions):
            self._changed.notify()

    def release(self, transitions: Iterable[Transition]) -> None:
        """Let the processes that were forked begin their work."""
        for each in transitions:
            if each.child is not None:
                each.child.send({})

    def set_timer(self, task: TaskRuntime) -> None:
        """Schedule the timer event of a task; replaces one that was scheduled before."""
        if task.timer is not None:
            task.timer.cancel()
            task.timer = None
        if task.machine.deadline is not None:
            delay = max(0.0, task.machine.deadline - time.monotonic())
            task.timer = asyncio.get_running_loop().call_later(delay, self.dispatch, [(task, TaskEvent.TIMER)])
