"""What a restart is about: which tasks, in which order, and what is lost by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfcluster.client.restart import restart_of
from tfcluster.core.states import ClusterState, TaskState
from tfcluster.core.status import ClusterStatus, TaskStatus
from tfcluster.errors import ClusterError, ExitCode


def status(**states: TaskState) -> ClusterStatus:
    """A cluster of two tasks for each job, all in the job's state."""
    tasks = tuple(
        TaskStatus(f"/job:{job}/task:{index}", job, index, "h", "h:1", state, 1, 0, 1.0, 0.0, 1, (), None)
        for job, state in states.items()
        for index in (0, 1)
    )
    return ClusterStatus("demo", ClusterState.DEGRADED, "c.yaml", (), tasks, ())


READY, FAILED = TaskState.READY, TaskState.FAILED


def test_which_tasks_are_restarted_in_which_order_and_hold_variables() -> None:
    restart = restart_of(status(chief=READY, worker=READY, ps=READY), ())
    assert restart.tasks == ("ps:0", "ps:1", "chief:0", "chief:1", "worker:0", "worker:1")
    assert restart.holders == ("ps:0", "ps:1")
    restart = restart_of(status(ps=READY, worker=READY), ("worker", "/job:ps/task:1", "worker:0"))
    assert restart.tasks == ("ps:1", "worker:0", "worker:1")
    assert restart.holders == ("ps:1",)
    assert restart_of(status(ps=READY, worker=READY), ("worker",)).holders == ()
    assert restart_of(status(local=READY, worker=READY), ("worker:1", "local")).holders == (
        "local:0",
        "local:1",
        "worker:1",
    )
    with pytest.raises(ClusterError) as caught:
        restart_of(status(ps=READY), ("ps:0", "ps:7"))
    assert (caught.value.message, caught.value.exit_code) == ("no task 'ps:7'", ExitCode.USAGE)


@pytest.mark.parametrize("state", TaskState)
def test_only_a_process_has_variables_to_lose(state: TaskState) -> None:
    without = {TaskState.BACKING_OFF, TaskState.FAILED, TaskState.STOPPED}
    assert restart_of(status(ps=state), ("ps:0",)).holders == (() if state in without else ("ps:0",))


def test_the_losses_are_variables_and_runs() -> None:
    restart = restart_of(status(ps=READY, worker=READY), ())
    assert restart.losses == ("the variables of ps:0, ps:1",)
    assert replace(restart, runs=("a-1",)).losses == (
        "the variables of ps:0, ps:1",
        "run a-1, if it uses these tasks",
    )
    assert restart_of(status(ps=FAILED), ()).losses == ()
