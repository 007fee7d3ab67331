"""Where a task stands goes through the journal and comes back; the next agent's machine goes on from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.test_journal import LAYOUT
from tfcluster import settings
from tfcluster.agent.tasks.adoption import recorded, resumed
from tfcluster.agent.tasks.state_machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES, TaskState
from tfcluster.core.status import LastExit
from tfcluster.core.topology import RestartPolicy
from tfcluster.process_handle import ProcessHandle

POLICY = RestartPolicy("on-failure", initial=1.0, max=8.0, limit=3, window=60.0)
FRESH = TaskStateMachine(POLICY)
PROCESS = ProcessHandle(17, 123456)


def task(machine: TaskStateMachine, process: ProcessHandle | None) -> TaskRuntime:
    return TaskRuntime(
        LAYOUT.tasks[0], machine, Path("log"), process, started=1700000000.0, last_exit=LastExit("SIGKILL", 1.0)
    )


def through_the_journal(
    machine: TaskStateMachine, process: ProcessHandle | None, now: float
) -> tuple[TaskStateMachine, TaskEvent | None]:
    return resumed(FRESH, recorded(task(machine, process)), now)


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
def test_what_is_at_rest_stays_there(state: TaskState) -> None:
    machine = replace(FRESH, state=state, restarts=4, ends=(1.0, 2.0))
    assert through_the_journal(machine, None, 50.0) == (machine, None)


def test_what_waits_goes_on_waiting_for_the_same_moment() -> None:
    machine = replace(FRESH, state=TaskState.BACKING_OFF, restarts=1, ends=(1.0, 2.0), wake_at=3.0)
    assert through_the_journal(machine, None, 2.5) == (machine, None)
    assert through_the_journal(machine, None, 99.0) == (machine, None), "overdue, it is due at once"


def test_what_waited_before_a_boot_waits_no_longer() -> None:
    record = recorded(task(replace(FRESH, state=TaskState.BACKING_OFF, wake_at=3.0), None))
    assert resumed(FRESH, replace(record, wake_at=None), 0.5)[0].wake_at == 0.5


@pytest.mark.parametrize("state", sorted(HAS_PROCESS - {TaskState.STOPPING}))
def test_what_ran_is_what_it_was_until_it_answers_or_does_not(state: TaskState) -> None:
    misses = settings.FAILED_PROBES_MAX + 1 if state is TaskState.UNRESPONSIVE else 2
    machine = replace(FRESH, state=state, restarts=2, ends=(1.0,), misses=misses)
    found, owed = through_the_journal(machine, PROCESS, 5.0)
    assert found == replace(machine, misses=settings.FAILED_PROBES_MAX if state is TaskState.UNRESPONSIVE else 0)
    assert owed is None
    assert found.after(TaskEvent.PROBE_OK, 5.0, 0.5)[0].state is TaskState.READY


@pytest.mark.parametrize(
    ("state", "misses"),
    [(TaskState.READY, 2 * settings.FAILED_PROBES_MAX), (TaskState.UNRESPONSIVE, settings.FAILED_PROBES_MAX)],
)
def test_what_has_served_is_not_waited_for_as_if_it_were_starting(state: TaskState, misses: int) -> None:
    machine, _ = through_the_journal(replace(FRESH, state=state), PROCESS, 5.0)
    actions = []
    for _ in range(misses):
        machine, action = machine.after(TaskEvent.PROBE_FAILED, 5.0, 0.5)
        actions.append(action)
    assert actions == [None] * (misses - 1) + [Action.KILL]


@pytest.mark.parametrize("state", sorted(HAS_PROCESS - {TaskState.STOPPING, TaskState.STARTING}))
def test_an_end_that_no_agent_has_counted_is_counted(state: TaskState) -> None:
    machine = replace(FRESH, state=state, ends=(1.0,))
    found, owed = through_the_journal(machine, None, 5.0)
    assert owed is TaskEvent.FAILED_EXIT
    assert found.after(owed, 5.0, 0.5)[0].ends == (1.0, 5.0)


@pytest.mark.parametrize("policy", ["never", "on-failure", "always"])
def test_what_was_about_to_start_is_started_whatever_the_policy(policy: str) -> None:
    machine = replace(FRESH, policy=replace(POLICY, policy=policy), state=TaskState.STARTING, restarts=2, ends=(1.0,))
    found, owed = resumed(TaskStateMachine(machine.policy), recorded(task(machine, None)), 5.0)
    assert owed is TaskEvent.UNSTARTED
    assert found.after(owed, 5.0, 0.5) == (machine, Action.SPAWN)


def test_what_is_being_stopped_is_stopped() -> None:
    machine = replace(FRESH, state=TaskState.STOPPING, wake_at=9.0)
    found, owed = through_the_journal(machine, PROCESS, 5.0)
    assert owed is TaskEvent.STOP
    stopping, action = found.after(owed, 5.0, 0.5)
    assert (stopping.state, action, stopping.wake_at) == (TaskState.STOPPING, Action.TERMINATE, 5.0 + FRESH.grace)
    found, owed = through_the_journal(machine, None, 5.0)
    assert (found.state, owed) == (TaskState.STOPPED, None)


def test_what_is_being_stopped_to_be_started_anew_is() -> None:
    machine = replace(FRESH, state=TaskState.STOPPING, again=True)
    found, owed = through_the_journal(machine, PROCESS, 5.0)
    assert (found.state, owed) == (TaskState.STARTING, TaskEvent.RESTART)
    found, owed = through_the_journal(machine, None, 5.0)
    assert (found.state, owed) == (TaskState.STOPPED, TaskEvent.START)


def test_how_it_ended_and_since_when_it_runs_are_recorded() -> None:
    record = recorded(task(FRESH, PROCESS))
    assert (record.process, record.started, record.last_exit) == (PROCESS, 1700000000.0, LastExit("SIGKILL", 1.0))


@pytest.mark.parametrize("agents", [1, 2, 5, 100])
def test_the_limit_holds_across_agents(agents: int) -> None:
    """A task that dies at once, supervised by agents each of which dies after some of the steps."""
    machine, process = FRESH.after(TaskEvent.START, 0.0, 0.5)[0], PROCESS
    spawned, now, steps = 1, 0.0, 0
    while machine.state not in TERMINAL_STATES:
        steps += 1
        if steps % max(1, 12 // agents) == 0:  # this agent dies, the next one comes
            machine, owed = through_the_journal(machine, process, now)
            if owed is not None:
                machine, _ = machine.after(owed, now, 0.5)
        if machine.state is TaskState.BACKING_OFF:
            assert machine.wake_at is not None
            now = max(now, machine.wake_at)
            machine, action = machine.after(TaskEvent.TIMER, now, 0.5)
            assert action is Action.SPAWN
            spawned += 1
        else:
            machine, _ = machine.after(TaskEvent.FAILED_EXIT, now, 0.5)
    assert machine.state is TaskState.FAILED
    assert (spawned, machine.restarts, len(machine.ends)) == (1 + POLICY.limit, POLICY.limit, POLICY.limit + 1)
