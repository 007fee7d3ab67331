"""Dispatches events to the tasks' state machines: a transition leads to an action and to entries in journal and log."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable, Iterable

from tfcluster.agent.change_notifier import ChangeNotifier
from tfcluster.agent.journal import Journal, journal_error
from tfcluster.agent.journal_record import TaskRecord, to_record
from tfcluster.agent.logs.event_log import EventLog
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.tasks.state_machine import Action, TaskEvent
from tfcluster.agent.tasks.task_launcher import TaskLauncher
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.agent.tasks.transition import Transition
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
                child.hang_up()  # makes it exit
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
            self._changed.tell()

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
                self._changed.tell()
            self.dispatch([(task, TaskEvent.BLOCKED)])
        else:
            self.dispatch([(task, TaskEvent.TIMER)])
