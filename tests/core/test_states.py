"""The state of a cluster from the states of its tasks, and the sets of states."""

from __future__ import annotations

from itertools import product

import pytest

from tfcluster.core.states import (
    ACTIVE_RUN_STATES,
    HAS_PROCESS,
    TERMINAL_STATES,
    ClusterState,
    RunState,
    TaskState,
    cluster_state,
)

# A row and a column for each state of one of two tasks: R running, S starting, D degraded, F failed, - stopped.
_ORDER = ("starting", "ready", "unresponsive", "backing-off", "failed", "stopping", "stopped")
_PAIRS = """
S S D D D D D
S R D D D D D
D D D D D D D
D D D D D D D
D D D D F D F
D D D D D D D
D D D D F D -
"""
_LETTERS = {
    "R": ClusterState.RUNNING,
    "S": ClusterState.STARTING,
    "D": ClusterState.DEGRADED,
    "F": ClusterState.FAILED,
    "-": ClusterState.STOPPED,
}
PAIRS = [
    (TaskState(one), TaskState(other), _LETTERS[letter])
    for (one, other), letter in zip(product(_ORDER, _ORDER), _PAIRS.split(), strict=True)
]


def test_one_and_two_tasks() -> None:
    assert {(one, other) for one, other, _ in PAIRS} == set(product(TaskState, TaskState))
    for one, other, expected in PAIRS:
        assert cluster_state([one, other]) is expected, (one, other)
        assert one is not other or cluster_state([one]) is expected, one


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("ready starting ready", ClusterState.STARTING),
        ("ready starting failed", ClusterState.DEGRADED),
        ("ready ready stopped", ClusterState.DEGRADED),
        ("stopped failed stopped", ClusterState.FAILED),
        ("stopped stopped stopping", ClusterState.DEGRADED),
    ],
)
def test_three_tasks_in_any_order(states: str, expected: ClusterState) -> None:
    tasks = [TaskState(word) for word in states.split()]
    for turn in range(3):
        assert cluster_state(tasks[turn:] + tasks[:turn]) is expected


def test_a_state_has_a_process_or_rests_or_waits_for_one() -> None:
    assert not HAS_PROCESS & TERMINAL_STATES
    assert set(TaskState) - HAS_PROCESS - TERMINAL_STATES == {TaskState.BACKING_OFF}


def test_the_words_are_those_of_the_contract() -> None:
    assert {state.value for state in TaskState} == set(_ORDER)
    assert {state.value for state in ClusterState} == {
        *("pending", "running", "starting", "degraded", "failed", "stopped"),
    }
    ended = {"succeeded", "failed", "cancelled", "unreadable"}  # the last if the record of the run is
    assert {state.value for state in RunState} == {"queued", "running"} | ended
    assert {RunState.QUEUED, RunState.RUNNING} == ACTIVE_RUN_STATES
