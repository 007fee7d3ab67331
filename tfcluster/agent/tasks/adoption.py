"""Converts a task's state to its journal record, and restores it when a new agent adopts the task.

Recording and restoring are pure functions, so that every state can be tested without processes.
"""

from __future__ import annotations

from dataclasses import replace

from tfcluster import settings
from tfcluster.agent.journal_record import TaskRecord
from tfcluster.agent.tasks.state_machine import TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TERMINAL_STATES, TaskState


def recorded(task: TaskRuntime) -> TaskRecord:
    """Return the journal record of a task: what the next agent needs in order to adopt it."""
    machine = task.machine
    # While there is a process, `wake_at` is the deadline for its exit. It is not recorded: the next agent gives the
    # process the whole grace period again.
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
    """Restore a task's state machine from its journal record.

    Args:
        machine: The initial state machine of the task.
        record: The record that an earlier agent wrote.
        now: The current time, in monotonic seconds.

    Returns:
        The restored machine, and the event that must be dispatched to it next; None for no event.
    """
    machine = replace(machine, state=record.state, restarts=record.restarts, ends=record.ends)
    if record.state in TERMINAL_STATES:
        return machine, None
    if record.state is TaskState.BACKING_OFF:
        return replace(machine, wake_at=now if record.wake_at is None else record.wake_at), None
    if record.state is TaskState.STOPPING and record.process is None:
        return replace(machine, state=TaskState.STOPPED), TaskEvent.START if record.again else None
    if record.state is TaskState.STOPPING:
        # The process must be told to end once more, and the machine does that only for a task that is running.
        return replace(machine, state=TaskState.STARTING), TaskEvent.RESTART if record.again else TaskEvent.STOP
    if record.state is TaskState.STARTING and record.process is None:
        return machine, TaskEvent.UNSTARTED
    # A task that has been ready keeps its state: it does not get the time for starting a server again.
    misses = settings.FAILED_PROBES_MAX if record.state is TaskState.UNRESPONSIVE else 0
    return replace(machine, misses=misses), None if record.process else TaskEvent.FAILED_EXIT


def without_unstarted(record: TaskRecord) -> TaskRecord:
    """Return a task's record without its process if the earlier agent died before it released the process.

    Such a process exits by itself. It may not have done so yet, so it is killed here too. It is recognized by its
    session: a server first creates a session of its own, and a process that was not released is still in the session
    of its agent.
    """
    process = record.process
    if record.state is not TaskState.STARTING or process is None or process.leads_session():
        return record
    process.kill()
    return replace(record, process=None)
