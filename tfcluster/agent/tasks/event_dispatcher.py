"""Dispatches events to the tasks' state machines: a transition leads to an action and to entries in journal and log."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tfcluster.agent.change_notifier import ChangeNotifier
from tfcluster.agent.logs.cluster_logs import EventLog
from tfcluster.agent.state.journal import Journal, journal_error
from tfcluster.agent.state.journal_record import TaskRecord, to_record
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.tasks.state_machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_launcher import TaskLauncher
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TaskState
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.process_handle import send_signal

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
    """A state transition that has been made, and can be undone until it is in the journal.

    Attributes:
        task: The task in its state after the transition.
        event: The event that caused the transition.
        before: The task's state machine before the transition.
        action: The action that the state machine requested; None for no action.
        child: The process that was forked and waits to be released; None if none was forked.
    """

    task: TaskRuntime
    event: TaskEvent
    before: TaskStateMachine
    action: Action | None
    child: ChildProcess | None

    @property
    def is_visible(self) -> bool:
        """Whether the watchers of the task must be notified."""
        after = self.task.machine
        changed = (after.state, after.desired_running) != (self.before.state, self.before.desired_running)
        return changed or self.action is Action.SPAWN

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
        """Undo the transition: restore the state machine, kill the process that was forked and wait for its exit.

        The process has not been released, so it has not begun its work.
        """
        self.task.machine = self.before
        if self.child is not None:
            self.child.close_pipe()
            self.child.kill()
            self.child.wait()

    def describe(self) -> tuple[str, str] | None:
        """Describe the transition for the event log.

        Returns:
            The name of the logged event and its detail, or None if there is nothing to record.
        """
        task, after, event = self.task, self.task.machine, self.event
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
            case TaskState.BACKING_OFF if event is TaskEvent.BLOCKED:
                return "blocked", task.startup_error
            case TaskState.BACKING_OFF:
                restart = f"backing off {self.delay:.2g} s" if self.delay else "restarting immediately"
                return "died", f"{exit_reason}; {restart}"
            case TaskState.FAILED if event in (TaskEvent.UNSTARTABLE, TaskEvent.BLOCKED):
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
    """Carries out what follows from the events of tasks.

    Args:
        journal: The journal.
        launcher: Forks the processes of tasks.
        history: The event log.
        changed: Notified whenever a task's state changes.
        topology: Returns the topology of the cluster.
        write_snapshot: Writes a snapshot to the journal; raises a ClusterError if it cannot.
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

    def dispatch(self, events: Iterable[tuple[TaskRuntime, TaskEvent]]) -> None:
        """Dispatch events to the tasks' state machines, and write the journal once for all transitions that result.

        A process that is forked begins its work when the journal contains it: if this agent dies, the next one can
        adopt it.

        Raises:
            ClusterError: The journal cannot be written, so that the processes that were forked exit again.
        """
        transitions = [self.make_transition(task, event) for task, event in events]
        try:
            self._record(transitions)
        except ClusterError as error:
            unrecorded = [each.child for each in transitions if each.child is not None]
            for child in unrecorded:
                child.close_pipe()  # makes it exit
            self.publish(transitions)
            if unrecorded:
                raise
            # Processes that have exited or are exiting need no record: the next agent finds that they are gone.
            _logger.error("%s", error.message)
            return
        self.publish(transitions)
        self.release(transitions)

    def make_transition(self, task: TaskRuntime, event: TaskEvent) -> Transition:
        """Dispatch an event to a task's state machine, and carry out the action that it requests.

        A process that is forked waits to be released.

        Returns:
            The transition that was made.
        """
        before = task.machine
        task.machine, action = before.handle(event, time.monotonic(), random.random())
        child = self._act(task, event, action) if action is not None else None
        self.set_timer(task)
        return Transition(task, event, before, action, child)

    def _act(self, task: TaskRuntime, event: TaskEvent, action: Action) -> ChildProcess | None:
        """Fork a task's process, or send a signal to it.

        Returns:
            The process that was forked, if any.
        """
        if action is Action.SPAWN:
            return self._launcher.fork(task, self._topology())
        if task.pidfd is not None:
            send_signal(task.pidfd, signal.SIGTERM if action is Action.TERMINATE else signal.SIGKILL)
            task.killed = task.killed or action is Action.KILL
            task.startup_error = _EXIT_CAUSES.get(event, task.startup_error)
        return None

    def _record(self, transitions: Iterable[Transition]) -> None:
        """Append to the journal the tasks whose transitions the next agent must know.

        Raises:
            ClusterError: The journal cannot be written.
        """
        tasks = {each.task.spec.name: to_record(each.task) for each in transitions if each.is_durable}
        if tasks and not self._append(tasks):
            self._write_snapshot()

    def _append(self, tasks: dict[str, TaskRecord]) -> bool:
        try:
            return self._journal.append(tasks)
        except OSError as error:
            raise journal_error(self._journal.path, error) from error

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
            task.timer = asyncio.get_running_loop().call_later(delay, self._handle_timer, task)

    def _handle_timer(self, task: TaskRuntime) -> None:
        """Dispatch the timer event of a task, or BLOCKED if its back-off is over and another process uses its port."""
        if task.machine.state is TaskState.BACKING_OFF and (blocked := self._launcher.blocked(task)):
            if blocked != task.startup_error:
                self._launcher.note_blocked(task, blocked)
                self._history.record("blocked", task=task.spec.short, detail=blocked)
                self._changed.notify()
            self.dispatch([(task, TaskEvent.BLOCKED)])
        else:
            self.dispatch([(task, TaskEvent.TIMER)])
