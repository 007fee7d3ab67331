"""The record of a task in the journal, the state machine that is restored from it, and the task's status."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_journal import TOPOLOGY
from tfcluster import settings
from tfcluster.agent.tasks.machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.transitions import TaskRuntime, drop_unreleased, restore
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES, TaskState
from tfcluster.core.status import LastExit
from tfcluster.core.topology import RestartPolicy
from tfcluster.os.process_handle import ProcessHandle

POLICY = RestartPolicy("on-failure", initial=1.0, max=8.0, limit=3, window=60.0)
FRESH = TaskStateMachine(POLICY)
PROCESS = ProcessHandle(17, 123456)


def task(machine: TaskStateMachine, process: ProcessHandle | None) -> TaskRuntime:
    spec, log = TOPOLOGY.tasks[0], Path("log")
    return TaskRuntime(spec, machine, log, log, process, started=1700000000.0, last_exit=LastExit("SIGKILL", 1.0))


def through_the_journal(
    machine: TaskStateMachine, process: ProcessHandle | None, now: float, probes: int = 1000
) -> tuple[TaskStateMachine, TaskEvent | None]:
    record = task(machine, process).to_record()
    assert (record.process, record.started, record.last_exit) == (process, 1700000000.0, LastExit("SIGKILL", 1.0))
    return restore(replace(FRESH, policy=machine.policy), record, now, probes)


@pytest.mark.parametrize(
    ("before", "process", "after", "event"),
    [
        *(({"state": state}, None, {"state": state}, None) for state in sorted(TERMINAL_STATES)),
        ({"state": TaskState.BACKING_OFF, "deadline": 3.0}, None, {"deadline": 3.0}, None),
        ({"state": TaskState.STARTING}, None, {"state": TaskState.STARTING}, TaskEvent.UNSTARTED),
        # An exit without an agent is counted.
        ({"state": TaskState.READY}, None, {}, TaskEvent.FAILED_EXIT),
        ({"state": TaskState.UNRESPONSIVE}, None, {}, TaskEvent.FAILED_EXIT),
        ({"state": TaskState.STOPPING}, PROCESS, {"state": TaskState.STARTING}, TaskEvent.STOP),
        ({"state": TaskState.STOPPING}, None, {"state": TaskState.STOPPED}, None),
        (
            {"state": TaskState.STOPPING, "restart_pending": True},
            PROCESS,
            {"state": TaskState.STARTING},
            TaskEvent.RESTART,
        ),
        ({"state": TaskState.STOPPING, "restart_pending": True}, None, {"state": TaskState.STOPPED}, TaskEvent.START),
    ],
)
@pytest.mark.parametrize("policy", ["never", "on-failure", "always"])
def test_what_the_next_agent_does_with_a_task(
    policy: str, before: dict[str, Any], process: ProcessHandle | None, after: dict[str, Any], event: TaskEvent | None
) -> None:
    machine = replace(FRESH, policy=replace(POLICY, policy=policy), restarts=2, exit_times=(1.0,), **before)
    restored, found = through_the_journal(machine, process, 5.0)
    assert found is event
    assert (restored.policy, restored.restarts, restored.exit_times) == (machine.policy, 2, (1.0,))
    assert {name: getattr(restored, name) for name in after} == after


def test_a_back_off_ends_at_a_reboot() -> None:
    record = task(replace(FRESH, state=TaskState.BACKING_OFF, deadline=3.0), None).to_record()
    assert restore(FRESH, replace(record, deadline=None), 0.5, 0)[0].deadline == 0.5


SERVING = sorted(HAS_PROCESS - {TaskState.STOPPING})


@pytest.mark.parametrize("state", SERVING)
def test_an_old_server_has_until_its_probes_fail(state: TaskState) -> None:
    machine = replace(FRESH, state=state, restarts=2, exit_times=(1.0,), failed_probes=2)
    restored, event = through_the_journal(machine, PROCESS, 5.0)
    assert (restored, event) == (replace(machine, state=TaskState.READY, failed_probes=0), None)
    actions = []
    for _ in range(2 * settings.FAILED_PROBES_MAX):
        restored, action = restored.handle(TaskEvent.PROBE_FAILED, 5.0, 0.5)
        actions.append(action)
    assert actions == [None] * (2 * settings.FAILED_PROBES_MAX - 1) + [Action.KILL]


@pytest.mark.parametrize("state", SERVING)
@pytest.mark.parametrize("probes", [0, 5, settings.FAILED_PROBES_MAX_STARTING - settings.FAILED_PROBES_MAX - 1])
def test_a_young_server_has_the_rest_of_the_time_for_starting(state: TaskState, probes: int) -> None:
    restored, event = through_the_journal(replace(FRESH, state=state), PROCESS, 5.0, probes)
    assert (restored.state, event) == (TaskState.STARTING, None)
    assert restored.handle(TaskEvent.PROBE_OK, 5.0, 0.5)[0].state is TaskState.READY
    actions = []
    for _ in range(settings.FAILED_PROBES_MAX_STARTING - probes):
        restored, action = restored.handle(TaskEvent.PROBE_FAILED, 5.0, 0.5)
        actions.append(action)
    assert actions == [None] * (settings.FAILED_PROBES_MAX_STARTING - probes - 1) + [Action.KILL]


def test_a_dead_process_was_a_server_unless_it_has_noted_that_it_was_not_released() -> None:
    process = ProcessHandle(2**22, 1)
    record = task(replace(FRESH, state=TaskState.READY), process).to_record()
    assert drop_unreleased(record, lambda: set()) == record
    assert drop_unreleased(record, lambda: {process}).process is None


def test_a_process_that_waits_to_be_released_is_killed() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        process = ProcessHandle.from_pid(child.pid)
        record = task(replace(FRESH, state=TaskState.STARTING), process).to_record()
        assert drop_unreleased(record, lambda: set()).process is None
        assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("agents", [1, 2, 5, 100])
def test_the_limit_holds_across_agents(agents: int) -> None:
    """A task that dies at once, supervised by agents that each die after some of the steps."""
    machine, process = FRESH.handle(TaskEvent.START, 0.0, 0.5)[0], PROCESS
    spawned, now, steps = 1, 0.0, 0
    while machine.state not in TERMINAL_STATES:
        steps += 1
        if steps % max(1, 12 // agents) == 0:  # this agent dies, the next one comes
            machine, event = through_the_journal(machine, process, now)
            if event is not None:
                machine, _ = machine.handle(event, now, 0.5)
        if machine.state is TaskState.BACKING_OFF:
            assert machine.deadline is not None
            now = max(now, machine.deadline)
            machine, action = machine.handle(TaskEvent.TIMER, now, 0.5)
            assert action is Action.SPAWN
            spawned += 1
        else:
            machine, _ = machine.handle(TaskEvent.FAILED_EXIT, now, 0.5)
    assert machine.state is TaskState.FAILED
    assert (spawned, machine.restarts, len(machine.exit_times)) == (1 + POLICY.limit, POLICY.limit, POLICY.limit + 1)
