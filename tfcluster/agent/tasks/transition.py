"""One state transition of a task: the event, the action that followed, and its description for the event log."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.tasks.state_machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TaskState

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
            self.child.hang_up()
            self.child.kill()
            self.child.reap()

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
