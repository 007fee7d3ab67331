"""What `up` has to do: the wanted layout against what was found, as operations, each with its cause."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.layout import Layout, Task
from tfcluster.model.states import AT_REST
from tfcluster.model.status import TaskStatus


@dataclass(frozen=True)
class Operation:
    """One thing to do, and why."""

    kind: str
    task: Task
    cause: str

    def __str__(self) -> str:
        return f"{self.kind} {self.task.short} on {self.task.host} at {self.task.address}: {self.cause}"


def plan(wanted: Layout, found: Layout | None, tasks: tuple[TaskStatus, ...]) -> tuple[Operation, ...]:
    """The operations that lead from what was found to what is wanted; none when nothing has to change.

    Args:
        wanted: The layout of the spec.
        found: The layout of the cluster of that name that is up; None when there is none.
        tasks: The state of the found cluster's tasks.

    Raises:
        ClusterError: A different cluster of that name is up.
    """
    if found is None:
        return tuple(Operation("start", task, "new") for task in wanted.tasks)
    if not wanted.same_cluster_as(found):
        raise already_up(wanted, found)
    state = {status.task: status for status in tasks}
    return tuple(
        Operation("start", task, _cause(state[task.name])) for task in found.tasks if state[task.name].state in AT_REST
    )


def already_up(wanted: Layout, found: Layout) -> ClusterError:
    """That a different cluster of the wanted one's name is up."""
    return ClusterError(
        f"cluster {wanted.cluster!r} is already up from a different spec ({found.spec})",
        hint=f"Take it down first with `tfcluster down -c {wanted.cluster}`, or give {wanted.spec} another `name:`.",
        exit_code=ExitCode.USAGE,
    )


def _cause(status: TaskStatus) -> str:
    if status.last_exit is None:
        return f"it is {status.state.value}"
    return f"it is {status.state.value} ({status.last_exit.reason})"
