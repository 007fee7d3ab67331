"""Where a task stands, into the journal and out of it again: pure, so that every state is tested without processes."""

from __future__ import annotations

from dataclasses import replace

from tfcluster.agent.journal_record import TaskRecord
from tfcluster.agent.tasks.state_machine import FAILED_PROBES_ALLOWED, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TERMINAL_STATES, TaskState


def recorded(task: TaskRuntime) -> TaskRecord:
    """What the next agent must know of a task."""
    machine = task.machine
    # While there is a process, `wake_at` is when its time to end is over: the next agent gives it the whole time.
    wake_at = machine.wake_at if machine.state is TaskState.BACKING_OFF else None
    return TaskRecord(
        task.process,
        task.started,
        machine.restarts,
        machine.state,
        machine.ends,
        wake_at,
        task.last_exit,
        machine.again,
        task.generation,
    )


def resumed(machine: TaskStateMachine, record: TaskRecord, now: float) -> tuple[TaskStateMachine, TaskEvent | None]:
    """A fresh machine brought to where a record says its task stands, and the event that it is owed.

    Args:
        machine: The machine of a task that has done nothing yet.
        record: What an earlier agent recorded.
        now: Monotonic seconds.
    """
    machine = replace(machine, state=record.state, restarts=record.restarts, ends=record.ends)
    if record.state in TERMINAL_STATES:
        return machine, None
    if record.state is TaskState.BACKING_OFF:
        return replace(machine, wake_at=now if record.wake_at is None else record.wake_at), None
    if record.state is TaskState.STOPPING and record.process is None:
        return replace(machine, state=TaskState.STOPPED), TaskEvent.START if record.again else None
    if record.state is TaskState.STOPPING:
        # It is to be told once more, by an agent that knows only of those that run.
        return replace(machine, state=TaskState.STARTING), TaskEvent.RESTART if record.again else TaskEvent.STOP
    if record.state is TaskState.STARTING and record.process is None:
        return machine, TaskEvent.UNSTARTED
    # One that has served is not given the time again that a server may take to start.
    misses = FAILED_PROBES_ALLOWED if record.state is TaskState.UNRESPONSIVE else 0
    return replace(machine, misses=misses), None if record.process else TaskEvent.FAILED_EXIT


def without_unstarted(record: TaskRecord) -> TaskRecord:
    """What is recorded of a task, without a process that its agent had not told to begin when it died.

    Such a process ends by itself. It is ended here too, as it may not have come to that: it still is in its agent's
    session, and the first thing that a server does is to begin one of its own.
    """
    process = record.process
    if record.state is not TaskState.STARTING or process is None or process.leads_session():
        return record
    process.kill()
    return replace(record, process=None)
