"""Describes the state transitions of a task for the event log."""

from __future__ import annotations

import time

from tfcluster.agent.tasks.state_machine import TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TaskState


def describe_transition(task: TaskRuntime, before: TaskStateMachine, event: TaskEvent) -> tuple[str, str] | None:
    """Describe a transition of a task's state machine for the event log.

    Args:
        task: The task in its state after the transition.
        before: The task's state machine before the transition.
        event: The event that caused the transition.

    Returns:
        The name of the logged event and its detail, or None if there is nothing to record.
    """
    after = task.machine
    if after.state is before.state:
        if event is TaskEvent.UNSTARTED and task.process is not None:
            return "started", f"pid {task.process.pid}; its agent had died before it began"
        return (
            ("killed", "it does not answer")
            if event is TaskEvent.PROBE_FAILED and after.misses < before.misses
            else None
        )
    how = task.last_exit.reason if task.last_exit else ""
    match after.state:
        case TaskState.STARTING:
            return "started", f"pid {task.process.pid}" if task.process else ""
        case TaskState.READY if before.state is TaskState.STARTING:
            return "ready", f"{max(0.0, time.time() - task.started):.2f} s after its start"
        case TaskState.READY:
            return "ready", "it answers again"
        case TaskState.UNRESPONSIVE:
            return "unresponsive", f"it did not answer {after.misses} times in a row"
        case TaskState.BACKING_OFF if event is TaskEvent.BLOCKED:
            return "blocked", task.report
        case TaskState.BACKING_OFF:
            wait = max(0.0, (after.wake_at or 0.0) - after.ends[-1])
            return "died", f"{how}; " + (f"backing off {wait:.2g} s" if wait else "it is started again at once")
        case TaskState.FAILED if event in (TaskEvent.UNSTARTABLE, TaskEvent.BLOCKED):
            return "failed", f"{how}: {task.report}"
        case TaskState.FAILED:
            policy = after.policy
            limit = f"more than {policy.limit} restarts in {policy.window:g} s"
            return "failed", f"{how}; " + ("restart policy never" if policy.policy == "never" else limit)
        case TaskState.STOPPING:
            return "stopping", "to be started anew by `tfcluster restart`" if after.again else ""
        case TaskState.STOPPED:
            return "stopped", how
