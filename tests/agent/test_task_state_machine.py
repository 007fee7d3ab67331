"""The state machine of a task: every state and event, and the counts and times between them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tfcluster import settings
from tfcluster.agent.tasks.machine import Action, TaskEvent, TaskStateMachine
from tfcluster.core.states import HAS_PROCESS, TaskState
from tfcluster.core.topology import RestartPolicy

POLICY = RestartPolicy("on-failure", initial=0.1, max=30.0, limit=5, window=60.0)
NOW = 100.0
WHOLE = 1.0  # the jitter by which nothing of a wait is left out

# What a task in each state does at each event, under the policy on-failure; `.` is nothing at all.
_TABLE = """
             START        STOP          RESTART       PROBE_OK PROBE_FAILED FAILED_EXIT CLEAN_EXIT UNSTARTABLE
starting     .            stopping+TERM stopping+TERM ready    starting     backing-off stopped    failed
ready        .            stopping+TERM stopping+TERM ready    ready        backing-off stopped    failed
unresponsive .            stopping+TERM stopping+TERM ready    unresponsive backing-off stopped    failed
backing-off  .            stopped       starting+NEW  .        .            .           .          .
failed       starting+NEW stopped       starting+NEW  .        .            .           .          .
stopping     .            .             .             .        .            stopped     stopped    stopped
stopped      starting+NEW .             starting+NEW  .        .            .           .          .

             BLOCKED      UNSTARTED     TIMER
starting     backing-off  starting+NEW  .
ready        .            .             .
unresponsive .            .             .
backing-off  .            .             starting+NEW
failed       .            .             .
stopping     .            .             stopping+KILL
stopped      .            .             .
"""
_ACTIONS = {"NEW": Action.SPAWN, "TERM": Action.TERMINATE, "KILL": Action.KILL, "": None}


def in_state(state: TaskState, policy: RestartPolicy = POLICY) -> TaskStateMachine:
    """A machine as it is in a state, with its time come where it waits for one."""
    waits = state in (TaskState.BACKING_OFF, TaskState.STOPPING)
    failed_probes = settings.FAILED_PROBES_MAX if state is TaskState.UNRESPONSIVE else 0
    return TaskStateMachine(policy, state, restarts=2, failed_probes=failed_probes, deadline=NOW if waits else None)


def _rows() -> list[tuple[TaskState, TaskEvent, str]]:
    parts = [[line.split() for line in part.splitlines() if line] for part in _TABLE.split("\n\n")]
    return [
        (TaskState(state), TaskEvent[event], cell)
        for head, *lines in parts
        for state, *cells in lines
        for event, cell in zip(head, cells, strict=True)
    ]


def test_the_table_has_every_state_and_every_event() -> None:
    rows = [(state, event) for state, event, _ in _rows()]
    assert len(rows) == len(set(rows))
    assert set(rows) == set(product(TaskState, TaskEvent))


@pytest.mark.parametrize(("state", "event", "cell"), _rows())
def test_every_state_and_event(state: TaskState, event: TaskEvent, cell: str) -> None:
    before = in_state(state)
    after, action = before.handle(event, NOW, WHOLE)
    if cell == ".":
        assert (after, action) == (before, None)
        return
    expected, _, act = cell.partition("+")
    assert after.state is TaskState(expected)
    assert action is _ACTIONS[act]


@pytest.mark.parametrize(
    ("state", "event"),
    [
        *product((TaskState.STOPPED, TaskState.FAILED), (TaskEvent.START, TaskEvent.RESTART)),
        (TaskState.BACKING_OFF, TaskEvent.RESTART),
    ],
)
def test_a_start_resets_the_counters(state: TaskState, event: TaskEvent) -> None:
    before = replace(in_state(state), exit_times=(98.0, 99.0), failed_probes=3, stop_timeout=7.0)
    fresh = TaskStateMachine(POLICY, TaskState.STARTING, stop_timeout=7.0)
    assert before.handle(event, NOW, WHOLE) == (fresh, Action.SPAWN)


def test_a_stop_kills_once_after_the_grace_period() -> None:
    ready = replace(in_state(TaskState.READY), stop_timeout=3.0)
    stopping, _ = ready.handle(TaskEvent.STOP, NOW, WHOLE)
    assert stopping.deadline == NOW + 3.0
    assert stopping.handle(TaskEvent.STOP, NOW + 1, WHOLE) == (stopping, None)
    assert stopping.handle(TaskEvent.TIMER, NOW + 2.9, WHOLE) == (stopping, None)
    killed, action = stopping.handle(TaskEvent.TIMER, NOW + 3.0, WHOLE)
    assert action is Action.KILL
    assert killed.handle(TaskEvent.TIMER, NOW + 9.0, WHOLE) == (killed, None)
    stopped, _ = killed.handle(TaskEvent.FAILED_EXIT, NOW + 9.0, WHOLE)
    assert (stopped.state, stopped.deadline) == (TaskState.STOPPED, None)


@pytest.mark.parametrize("policy", ["never", "on-failure", "always"])
@pytest.mark.parametrize("end", [TaskEvent.FAILED_EXIT, TaskEvent.CLEAN_EXIT])
@pytest.mark.parametrize("state", sorted(HAS_PROCESS - {TaskState.STOPPING}))
def test_a_restart_stops_and_starts_the_task_with_any_policy(state: TaskState, end: TaskEvent, policy: str) -> None:
    before = replace(in_state(state, replace(POLICY, policy=policy)), exit_times=(98.0, 99.0), stop_timeout=3.0)
    stopping, action = before.handle(TaskEvent.RESTART, NOW, WHOLE)
    assert (stopping.deadline, stopping.desired_running, action) == (NOW + 3.0, True, Action.TERMINATE)
    assert stopping.handle(TaskEvent.RESTART, NOW + 1, WHOLE) == (stopping, None)
    killed, action = stopping.handle(TaskEvent.TIMER, NOW + 3.0, WHOLE)
    assert (killed.state, killed.desired_running, action) == (TaskState.STOPPING, True, Action.KILL)
    fresh = TaskStateMachine(before.policy, TaskState.STARTING, stop_timeout=3.0)
    assert stopping.handle(end, NOW + 2, WHOLE) == (fresh, Action.SPAWN)
    assert killed.handle(end, NOW + 4, WHOLE) == (fresh, Action.SPAWN)


@pytest.mark.parametrize("first", [TaskEvent.STOP, TaskEvent.RESTART])
def test_a_further_stop_can_only_shorten_the_grace(first: TaskEvent) -> None:
    stopping, _ = replace(in_state(TaskState.READY), stop_timeout=60.0).handle(first, NOW, WHOLE)
    sooner, action = replace(stopping, stop_timeout=2.0).handle(TaskEvent.STOP, NOW + 1, WHOLE)
    assert (sooner.desired_running, sooner.deadline, action) == (False, NOW + 3.0, None)
    assert sooner.handle(TaskEvent.RESTART, NOW + 1, WHOLE) == (sooner, None), "a task that goes down stays down"
    assert sooner.handle(TaskEvent.FAILED_EXIT, NOW + 2, WHOLE)[0].state is TaskState.STOPPED
    assert replace(stopping, stop_timeout=90.0).handle(TaskEvent.STOP, NOW + 1, WHOLE)[0].deadline == NOW + 60.0
    killed, _ = stopping.handle(TaskEvent.TIMER, NOW + 60.0, WHOLE)
    assert killed.handle(TaskEvent.STOP, NOW + 61.0, WHOLE)[0].deadline is None, "it has been killed already"


@pytest.mark.parametrize("state", TaskState)
def test_a_task_is_desired_until_it_is_stopped_or_failed(state: TaskState) -> None:
    at_an_end = {TaskState.STOPPING, TaskState.STOPPED, TaskState.FAILED}
    assert in_state(state).desired_running is (state not in at_an_end)


@pytest.mark.parametrize(
    ("policy", "event", "expected"),
    [
        ("never", TaskEvent.FAILED_EXIT, TaskState.FAILED),
        ("never", TaskEvent.CLEAN_EXIT, TaskState.STOPPED),
        ("on-failure", TaskEvent.FAILED_EXIT, TaskState.BACKING_OFF),
        ("on-failure", TaskEvent.CLEAN_EXIT, TaskState.STOPPED),
        ("always", TaskEvent.FAILED_EXIT, TaskState.BACKING_OFF),
        ("always", TaskEvent.CLEAN_EXIT, TaskState.BACKING_OFF),
    ],
)
def test_the_policy_decides_what_an_exit_leads_to(policy: str, event: TaskEvent, expected: TaskState) -> None:
    after, action = in_state(TaskState.UNRESPONSIVE, replace(POLICY, policy=policy)).handle(event, NOW, WHOLE)
    assert (after.state, action) == (expected, None)
    assert after.failed_probes == 0


def delays(policy: RestartPolicy, exits: int, run_seconds: float = 0.0) -> list[float]:
    """The waits of a task that ends again and again, each time `run_seconds` after it was started."""
    machine, now, waits = in_state(TaskState.READY, policy), NOW, []
    for number in range(exits):
        machine, _ = machine.handle(TaskEvent.FAILED_EXIT, now, WHOLE)
        assert machine.state is TaskState.BACKING_OFF
        assert machine.deadline is not None
        waits.append(machine.deadline - now)
        now = machine.deadline
        machine, action = machine.handle(TaskEvent.TIMER, now, WHOLE)
        assert (machine.state, machine.restarts, action) == (TaskState.STARTING, 3 + number, Action.SPAWN)
        now += run_seconds
    return waits


def test_the_back_off_is_none_then_initial_then_doubles_up_to_the_maximum() -> None:
    policy = replace(POLICY, initial=0.5, max=3.0, limit=100, window=1e9)
    assert delays(policy, 7) == pytest.approx([0.0, 0.5, 1.0, 2.0, 3.0, 3.0, 3.0])


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 2.0), (0.5, 3.0), (1.0, 4.0)])
def test_half_of_the_back_off_is_jitter(jitter: float, wait: float) -> None:
    policy = replace(POLICY, initial=1.0, limit=9)
    machine = TaskStateMachine(policy, TaskState.READY, exit_times=(NOW - 3.0, NOW - 2.0, NOW - 1.0))
    after, _ = machine.handle(TaskEvent.FAILED_EXIT, NOW, jitter)
    assert after.deadline == NOW + wait


def test_the_back_off_never_exceeds_the_maximum() -> None:
    exit_times = tuple(float(number) for number in range(5000))
    policy = replace(POLICY, limit=10_000, window=1e9)
    after, _ = TaskStateMachine(policy, TaskState.READY, exit_times=exit_times).handle(
        TaskEvent.FAILED_EXIT, 5000.0, WHOLE
    )
    assert after.deadline == 5000.0 + policy.max


def test_restarts_within_the_window_are_limited() -> None:
    policy = replace(POLICY, limit=3, initial=1.0)
    assert delays(policy, 3, run_seconds=1.0) == pytest.approx([0.0, 1.0, 2.0])
    machine = TaskStateMachine(policy, TaskState.READY, restarts=3, exit_times=(NOW - 59.9, NOW - 2.0, NOW - 1.0))
    failed, action = machine.handle(TaskEvent.FAILED_EXIT, NOW, WHOLE)
    assert (failed.state, failed.deadline, failed.restarts, action) == (TaskState.FAILED, None, 3, None)


def test_exits_before_the_window_do_not_count() -> None:
    machine = TaskStateMachine(
        replace(POLICY, limit=2), TaskState.READY, exit_times=(NOW - 61.0, NOW - 60.0, NOW - 59.0)
    )
    after, _ = machine.handle(TaskEvent.FAILED_EXIT, NOW, WHOLE)
    assert after.state is TaskState.BACKING_OFF
    assert after.exit_times == (NOW - 59.0, NOW)
    assert after.deadline == NOW + POLICY.initial


def missed(machine: TaskStateMachine, times: int) -> tuple[TaskStateMachine, list[Action | None]]:
    actions = []
    for _ in range(times):
        machine, action = machine.handle(TaskEvent.PROBE_FAILED, NOW, WHOLE)
        actions.append(action)
    return machine, actions


def test_a_task_is_unresponsive_after_failed_probes_in_a_row() -> None:
    almost, actions = missed(in_state(TaskState.READY), settings.FAILED_PROBES_MAX - 1)
    assert (almost.state, set(actions)) == (TaskState.READY, {None})
    answered, _ = almost.handle(TaskEvent.PROBE_OK, NOW, WHOLE)
    assert missed(answered, settings.FAILED_PROBES_MAX - 1)[0].state is TaskState.READY
    silent, actions = missed(almost, 1)
    assert (silent.state, actions) == (TaskState.UNRESPONSIVE, [None])


def test_an_unresponsive_task_is_killed_after_more_failed_probes_and_restarted() -> None:
    silent, _ = missed(in_state(TaskState.READY), settings.FAILED_PROBES_MAX)
    killed, actions = missed(silent, settings.FAILED_PROBES_MAX)
    assert actions == [None] * (settings.FAILED_PROBES_MAX - 1) + [Action.KILL]
    assert killed.state is TaskState.UNRESPONSIVE
    assert missed(killed, settings.FAILED_PROBES_MAX)[1] == [None] * settings.FAILED_PROBES_MAX
    ended, _ = killed.handle(TaskEvent.FAILED_EXIT, NOW, WHOLE)
    assert ended.state is TaskState.BACKING_OFF


def test_the_policy_never_kills_no_unresponsive_task() -> None:
    silent, actions = missed(
        in_state(TaskState.READY, replace(POLICY, policy="never")), 10 * settings.FAILED_PROBES_MAX
    )
    assert (silent.state, set(actions)) == (TaskState.UNRESPONSIVE, {None})


def test_a_task_that_never_answered_is_not_unresponsive() -> None:
    starting = in_state(TaskState.STARTING)
    almost, actions = missed(starting, settings.FAILED_PROBES_MAX_STARTING - 1)
    assert almost.state is TaskState.STARTING
    assert actions == [None] * (settings.FAILED_PROBES_MAX_STARTING - 1)
    assert missed(almost, 1)[1] == [Action.KILL]


@pytest.mark.parametrize("exits", [0, 1, 3])
def test_a_task_that_cannot_be_started_waits_without_a_limit(exits: int) -> None:
    """Waiting is no restart: neither after exits, nor of a task that was never started."""
    machine, action = TaskStateMachine(POLICY).handle(TaskEvent.START, NOW, WHOLE)
    now = NOW
    for _ in range(exits):
        machine, _ = machine.handle(TaskEvent.FAILED_EXIT, now, WHOLE)
        assert machine.deadline is not None
        now = machine.deadline
        machine, action = machine.handle(TaskEvent.TIMER, now, WHOLE)
    assert (machine.restarts, action) == (exits, Action.SPAWN)
    for _ in range(100):
        waiting, action = machine.handle(TaskEvent.BLOCKED, now, WHOLE)
        assert (waiting.state, action, waiting.restarts) == (TaskState.BACKING_OFF, None, max(0, exits - 1))
        assert waiting.exit_times == machine.exit_times
        assert waiting.deadline == now + settings.START_RETRY_SECONDS
        now = waiting.deadline
        started, action = waiting.handle(TaskEvent.TIMER, now, WHOLE)
        assert (started, action) == (machine, Action.SPAWN)


def test_a_task_with_the_policy_never_fails_if_it_cannot_be_started() -> None:
    machine, _ = TaskStateMachine(replace(POLICY, policy="never")).handle(TaskEvent.START, NOW, WHOLE)
    assert machine.handle(TaskEvent.BLOCKED, NOW, WHOLE) == (replace(machine, state=TaskState.FAILED), None)
