"""Plan the actions of `up` and `scale`: diff the desired topology against the observed state, with a cause for each."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tfcluster.core.reconcile import ObservedState
from tfcluster.core.states import TERMINAL_STATES
from tfcluster.core.status import TaskStatus
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.core.topology import PS_JOB, ClusterTopology, Task

STOP, RESTART, START, UPDATE = "stop", "restart", "start", "update"
#: The kinds of action, in the order in which they are executed.
KINDS = (STOP, RESTART, START, UPDATE)
_DONE = {START: "started", RESTART: "restarted", STOP: "stopped"}
#: Part of the cause of a restart that `max:` in the spec would have avoided.
PEER_UNKNOWN = "it must know the address of"


@dataclass(frozen=True)
class PlannedAction:
    """One action of a plan, with its cause and the data that it loses.

    Attributes:
        kind: `stop`, `restart`, `start`, or `update` for a change that needs no new process.
        task: The task; None if the action concerns the whole cluster.
        cause: Why the action is needed.
        lost: Descriptions of what the action loses: variables and runs.
    """

    kind: str
    task: Task | None
    cause: str
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" {self.task.short} on {self.task.host} at {self.task.address}" if self.task else ""
        lost = f"; LOST: {', '.join(self.lost)}" if self.lost else ""
        return f"{self.kind}{where}: {self.cause}{lost}"

    def to_json(self) -> dict[str, Any]:
        """Return the action as JSON values."""
        return {
            "operation": self.kind,
            "task": self.task.name if self.task else None,
            "host": self.task.host if self.task else None,
            "address": self.task.address if self.task else None,
            "cause": self.cause,
            "lost": list(self.lost),
        }


def plan(wanted: ClusterTopology, found: ObservedState | None) -> tuple[PlannedAction, ...]:
    """Compute the actions that lead from the observed state to the desired topology.

    A task that has to change gets a new process. So does a running server that does not know the address of
    another desired task: it could not fetch a tensor from that task, nor write to it if that task is a ps.
    A task that moves to another host is stopped on the old host and started on the new one.

    Args:
        wanted: The desired topology, merged with the observed one by `onto`.
        found: The observed state of the running cluster of that name; None if the cluster is not running. If it
            covers one host only, the actions on tasks of that host are the same as in the complete plan, and the
            other actions must be ignored.

    Returns:
        The actions in the order in which they are executed; empty if nothing has to change.
    """
    if found is None:
        return tuple(PlannedAction(START, task, "new") for task in wanted.tasks)
    operations = [*_task_operations(wanted, found), *_updates(wanted, found.topology)]
    return tuple(sorted(operations, key=_order))


def data_losses(operations: Sequence[PlannedAction]) -> list[str]:
    """Return descriptions of everything that the actions lose, without duplicates."""
    return list(dict.fromkeys(lost for operation in operations for lost in operation.lost))


def terminated_tasks(operations: Sequence[PlannedAction]) -> list[str]:
    """Return the names of the tasks whose processes the actions terminate."""
    return [each.task.name for each in operations if each.kind in (STOP, RESTART) and each.task is not None]


def affected_runs(tasks: Collection[str], runs: Mapping[str, Collection[str]]) -> list[str]:
    """Return descriptions of the runs that end when the processes of some tasks end.

    Args:
        tasks: Names of the tasks whose processes end.
        runs: The active runs with the names of their tasks, as in `ObservedState`.
    """
    return [f"run {run}" for run, used in runs.items() if not set(used).isdisjoint(tasks)]


def summary(operations: Sequence[PlannedAction]) -> str:
    """Summarize how many tasks were started, restarted and stopped.

    Returns:
        For example `2 tasks started, 1 stopped`; empty if the actions concern no task's process.
    """
    kinds = [operation.kind for operation in operations]
    counts = [(kinds.count(kind), word) for kind, word in _DONE.items() if kind in kinds]
    first = [f"{pluralize(count, 'task')} {word}" for count, word in counts[:1]]
    return ", ".join([*first, *(f"{count} {word}" for count, word in counts[1:])])


def is_pure_start(operations: Sequence[PlannedAction], found: ObservedState) -> bool:
    """Return whether the actions only start tasks that the running cluster already has: no task is new or changed."""
    there = {(task.name, task.host) for task in found.topology.tasks}
    return all(each.kind == START and each.task and (each.task.name, each.task.host) in there for each in operations)


def _order(operation: PlannedAction) -> tuple[int, bool]:
    """Return the sort key of the execution order: by kind, and a ps before the tasks that need its variables."""
    return KINDS.index(operation.kind), operation.task is not None and operation.task.job != PS_JOB


def _task_operations(wanted: ClusterTopology, found: ObservedState) -> Iterator[PlannedAction]:
    there = {task.name: task for task in found.topology.tasks}
    states = {status.task: status for status in found.tasks}
    hosts = {task.name: task.host for task in wanted.tasks}
    network = _difference("network", found.topology.network, wanted.network)
    unknown = {generation: _unknown(wanted, found, generation) for generation in set(found.generations.values())}
    for task in found.topology.tasks:
        if hosts.get(task.name) != task.host:
            yield PlannedAction(STOP, task, _gone(task, hosts.get(task.name)), _lost_with(task, found))
    for task in wanted.tasks:
        old, status = there.get(task.name), states.get(task.name)
        if old is None or old.host != task.host:
            yield PlannedAction(START, task, "new" if old is None else _gone(old, task.host))
            continue
        causes = [*_differences(old, task), *network]
        if status is None or status.state in TERMINAL_STATES:
            yield PlannedAction(START, task, ", ".join([_at_rest(status), *causes]))
            continue
        if task.name in found.generations and (others := unknown[found.generations[task.name]]):
            others = [other for other in others if other != task.short]
            causes += [f"{PEER_UNKNOWN} {summarize_list(others)}"] * bool(others)
        if causes:
            yield PlannedAction(RESTART, task, ", ".join(causes), _lost_with(old, found))
        elif updates := [*_silent_differences(old, task)]:
            yield PlannedAction(UPDATE, task, ", ".join(updates))


def _updates(wanted: ClusterTopology, found: ClusterTopology) -> Iterator[PlannedAction]:
    causes = _difference("logs", found.logs, wanted.logs, told=False)
    causes += _difference("lease", found.lease, wanted.lease)
    old_hosts, new_hosts = ({host.name: host for host in each.hosts} for each in (found, wanted))
    for name in dict.fromkeys([*old_hosts, *new_hosts]):
        causes += _presence("host", name, old_hosts, new_hosts) or _difference(
            f"host {name}", old_hosts[name], new_hosts[name], told=False
        )
    if PurePath(found.spec).name != PurePath(wanted.spec).name:  # the same file may be named by another path
        causes += _difference("spec file", found.spec, wanted.spec)
    for job in dict.fromkeys([*found.max, *wanted.max]):
        causes += _difference(f"max of {job}", found.max.get(job), wanted.max.get(job))
    for job in [job for job in wanted.spread if job in found.spread]:
        causes += _difference(f"hosts of {job}", found.spread[job], wanted.spread[job], told=False)
    yield from (PlannedAction(UPDATE, None, cause) for cause in causes)


def _unknown(wanted: ClusterTopology, found: ObservedState, generation: int) -> list[str]:
    """Return the short names of the desired tasks whose address a server started in a generation does not know."""
    there = {task.name: task for task in (*found.topology.reserved, *found.topology.tasks)}

    def is_known(task: Task) -> bool:
        old = there.get(task.name)
        return old is not None and old.address == task.address and old.known_in(generation)

    return [task.short for task in wanted.tasks if not is_known(task)]


def _differences(old: Task, new: Task) -> Iterator[str]:
    """Yield the differences of a task that need a new process.

    Values of environment variables may be secrets and are not shown.
    """
    yield from _difference("port", old.port, new.port)
    yield from _difference("address", old.address_host, new.address_host)
    yield from _difference("cpus", old.cpus, new.cpus)
    yield from _difference("gpus", old.gpus, new.gpus)
    for name in dict.fromkeys([*old.env, *new.env]):
        yield from _presence("env", name, old.env, new.env) or _difference(
            f"env {name}", old.env[name], new.env[name], told=False
        )


def _silent_differences(old: Task, new: Task) -> Iterator[str]:
    """Yield the differences of a task that need no new process."""
    yield from _difference("restart policy", old.restart, new.restart, told=False)
    yield from _difference("which env is secret", old.secrets, new.secrets, told=False)
    yield from _difference("which env is the host's", old.from_host, new.from_host, told=False)


def _presence(what: str, name: str, old: Container[str], new: Container[str]) -> list[str]:
    if name in old and name in new:
        return []
    return [f"{what} {name} {'added' if name in new else 'removed'}"]


def _difference(what: str, old: object, new: object, *, told: bool = True) -> list[str]:
    if old == new:
        return []
    return [f"{what} {_word(old)} -> {_word(new)}" if told else f"{what} changed"]


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def _lost_with(task: Task, found: ObservedState) -> tuple[str, ...]:
    """Return descriptions of what is lost when the process of a task ends.

    Variables are on the ps tasks; in a cluster without a ps they may be on any task.
    """
    if task.name not in found.generations:
        return ()
    has_ps = any(each.job == PS_JOB for each in found.topology.tasks)
    variables = [f"the variables of {task.short}"] * (task.job == PS_JOB or not has_ps)
    return (*variables, *affected_runs([task.name], found.runs))


def _gone(task: Task, host: str | None) -> str:
    return "no longer wanted" if host is None else f"host {task.host} -> {host}"


def _at_rest(status: TaskStatus | None) -> str:
    if status is None:
        return "its host does not have it"
    how = f" ({status.last_exit.reason})" if status.last_exit else ""
    return f"it is {status.state.value}{how}"
