"""What `up` does for what it wants and what it found."""

from __future__ import annotations

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.layout import Layout, lay_out
from tfcluster.model.plan import plan
from tfcluster.model.states import TaskState
from tfcluster.model.status import LastExit, TaskStatus
from tfcluster.spec.load import parse_spec

SPEC = "{name: demo, jobs: {ps: {tasks: 1}, worker: ['localhost:2223', '[::1]:2224']}}"


def layout_of(text: str, spec_file: str = "cluster.yaml") -> Layout:
    return lay_out(parse_spec(text, spec_file, "c"), spec_file)


def statuses(layout: Layout, *states: TaskState, last_exit: LastExit | None = None) -> tuple[TaskStatus, ...]:
    return tuple(
        TaskStatus(
            task=task.name,
            job=task.job,
            index=task.index,
            host=task.host,
            address=task.address,
            state=state,
            pid=None,
            restarts=0,
            uptime_s=None,
            cpu_percent=None,
            rss_bytes=None,
            devices=(),
            last_exit=last_exit,
        )
        for task, state in zip(layout.tasks, states, strict=True)
    )


def printed(wanted: Layout, found: Layout | None, tasks: tuple[TaskStatus, ...] = ()) -> list[str]:
    return [str(operation) for operation in plan(wanted, found, tasks)]


def test_a_new_cluster_starts_every_task_in_order() -> None:
    wanted = layout_of(SPEC).with_choices({"/job:ps/task:0": 2222}, {})
    assert printed(wanted, None) == [
        "start ps:0 on localhost at localhost:2222: new",
        "start worker:0 on localhost at localhost:2223: new",
        "start worker:1 on localhost at [::1]:2224: new",
    ]


@pytest.mark.parametrize("state", sorted(set(TaskState) - {TaskState.FAILED, TaskState.STOPPED}))
def test_a_task_that_is_up_or_comes_up_by_itself_is_left_alone(state: TaskState) -> None:
    found = layout_of(SPEC).with_choices({"/job:ps/task:0": 2222}, {})
    assert printed(layout_of(SPEC), found, statuses(found, *[state] * 3)) == []


def test_a_failed_task_is_started_at_its_kept_port_with_its_cause() -> None:
    found = layout_of(SPEC).with_choices({"/job:ps/task:0": 5000}, {})
    tasks = statuses(
        found, TaskState.FAILED, TaskState.READY, TaskState.STOPPED, last_exit=LastExit("SIGKILL", 1.0, "why")
    )
    assert printed(layout_of(SPEC), found, tasks) == [
        "start ps:0 on localhost at localhost:5000: it is failed (SIGKILL)",
        "start worker:1 on localhost at [::1]:2224: it is stopped (SIGKILL)",
    ]


def test_a_stopped_task_that_never_ended_has_its_state_as_the_cause() -> None:
    found = layout_of(SPEC)
    tasks = statuses(found, TaskState.READY, TaskState.STOPPED, TaskState.READY)
    assert printed(found, found, tasks) == ["start worker:0 on localhost at localhost:2223: it is stopped"]


def test_another_spec_file_with_the_same_content_is_no_difference() -> None:
    found = layout_of(SPEC, "old.yaml")
    assert printed(layout_of(SPEC, "new.yaml"), found, statuses(found, *[TaskState.READY] * 3)) == []


def test_a_different_cluster_of_that_name_is_a_usage_error() -> None:
    found = layout_of(SPEC, "old.yaml")
    wanted = layout_of("{name: demo, jobs: {ps: {tasks: 2}}}", "new.yaml")
    with pytest.raises(ClusterError) as caught:
        plan(wanted, found, statuses(found, *[TaskState.READY] * 3))
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.message == "cluster 'demo' is already up from a different spec (old.yaml)"
    assert caught.value.hint == "Take it down first with `tfcluster down -c demo`, or give new.yaml another `name:`."
