"""Plan the actions of `up` and `scale`: diff the desired topology against the observed state, with a cause for each."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any

from tfcluster.core.reconcile import ObservedState
from tfcluster.core.states import TERMINAL_STATES
from tfcluster.core.status import TaskStatus
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.core.topology import PS_JOB, THREAD_VARIABLES, ClusterTopology, Task
from tfcluster.records import record_class


class ActionKind(Enum):
    """The kinds of action, in the order of execution."""

    STOP = "stop"
    RESTART = "restart"
    START = "start"
    UPDATE = "update"  # a change that needs no new process


_ORDER = list(ActionKind)
_DONE = {ActionKind.START: "started", ActionKind.RESTART: "restarted", ActionKind.STOP: "stopped"}
_TERMINATING = (ActionKind.STOP, ActionKind.RESTART)


@record_class(frozen=True)
class PlannedAction:
    """One action of a plan, with its cause and the data that it loses."""

    kind: ActionKind
    task: Task | None  # None if the action concerns the whole cluster
    cause: str
    data_loss: tuple[str, ...] = ()  # descriptions of the variables and runs that it loses
    has_unknown_peers: bool = False  # the server does not know another task's address; `max:` would have avoided that

    def __str__(self) -> str:
        where = f" {self.task.short} on {self.task.host} at {self.task.address}" if self.task else ""
        loss = f"; LOST: {', '.join(self.data_loss)}" if self.data_loss else ""
        return f"{self.kind.value}{where}: {self.cause}{loss}"

    def to_json(self) -> dict[str, Any]:
        """Return the action as JSON values."""
        return {
            "operation": self.kind.value,
            "task": self.task.name if self.task else None,
            "host": self.task.host if self.task else None,
            "address": self.task.address if self.task else None,
            "cause": self.cause,
            "lost": list(self.data_loss),
        }


@record_class(frozen=True)
class HostStep:
    """What a provider does with hosts that exist before anything happens on them, and the data that it loses."""

    text: str
    data_loss: tuple[str, ...] = ()
    hint: str = ""  # what to do instead

    def __str__(self) -> str:
        return f"{self.text}; LOST: {', '.join(self.data_loss)}" if self.data_loss else self.text


def plan(desired: ClusterTopology, observed: ObservedState | None) -> tuple[PlannedAction, ...]:
    """Compute the actions that lead from the observed state to the desired topology, in the order of execution.

    A task that has to change gets a new process. So does a running server that does not know the address of
    another desired task: it could not fetch a tensor from that task, nor write to it if that task is a ps.
    A task that moves to another host is stopped on the old host and started on the new one.

    Args:
        desired: The desired topology, merged with the observed one by `merge_with_observed`.
        observed: The observed state of the running cluster of that name; None if the cluster is not running. If it
            covers one host only, the actions on tasks of that host are the same as in the complete plan, and the
            other actions must be ignored.
    """
    if observed is None:
        return tuple(PlannedAction(ActionKind.START, task, "new") for task in desired.tasks)
    actions = [*_task_actions(desired, observed), *_updates(desired, observed.topology)]
    return tuple(sorted(actions, key=_order))


def kept_servers(actions: Sequence[PlannedAction], observed: ObservedState) -> dict[str, int | None]:
    """Return the tasks that a plan does not touch, by name, with the generation in which their server was started.

    It is None for a task that waits for its next restart.
    """
    touched = {each.task.name for each in actions if each.task is not None and each.kind is not ActionKind.UPDATE}
    return {
        status.task: observed.generations.get(status.task) for status in observed.tasks if status.task not in touched
    }


def data_losses(actions: Sequence[PlannedAction | HostStep]) -> list[str]:
    """Return descriptions of everything that the actions lose, without duplicates."""
    return list(dict.fromkeys(loss for action in actions for loss in action.data_loss))


def terminated_tasks(actions: Sequence[PlannedAction]) -> list[str]:
    """Return the names of the tasks whose processes the actions terminate."""
    return [each.task.name for each in actions if each.kind in _TERMINATING and each.task is not None]


def lost_run(run: str, *, is_certain: bool) -> str:
    """Return how to name a run that loses tasks; of most programs only you know which of the tasks they use."""
    return run if is_certain else f"{run}, if it uses these tasks"


def affected_runs(tasks: Collection[str], runs: Mapping[str, Collection[str]]) -> list[str]:
    """Return descriptions of the runs that end when the processes of some tasks end."""
    return [f"run {run}" for run, used in runs.items() if not set(used).isdisjoint(tasks)]


def summary(actions: Sequence[PlannedAction]) -> str:
    """Summarize the processes of tasks, such as `2 tasks started, 1 stopped`; empty if there are none."""
    kinds = [action.kind for action in actions]
    counts = [(kinds.count(kind), word) for kind, word in _DONE.items() if kind in kinds]
    first = [f"{pluralize(count, 'task')} {word}" for count, word in counts[:1]]
    return ", ".join([*first, *(f"{count} {word}" for count, word in counts[1:])])


def _order(action: PlannedAction) -> tuple[int, bool]:
    """Return the sort key of the execution order: by kind, and a ps before the tasks that use its variables."""
    return _ORDER.index(action.kind), action.task is not None and action.task.job != PS_JOB


def _task_actions(desired: ClusterTopology, observed: ObservedState) -> Iterator[PlannedAction]:
    existing = {task.name: task for task in observed.topology.tasks}
    states = {status.task: status for status in observed.tasks}
    hosts = {task.name: task.host for task in desired.tasks}
    network = _difference("network", observed.topology.network, desired.network)
    generations = set(observed.generations.values())
    unknown_peers = {generation: _unknown_peers(desired, observed, generation) for generation in generations}
    for task in observed.topology.tasks:
        if hosts.get(task.name) != task.host:
            cause = _removal_cause(task, hosts.get(task.name))
            yield PlannedAction(ActionKind.STOP, task, cause, _loss_with(task, observed))
    for task in desired.tasks:
        old, status = existing.get(task.name), states.get(task.name)
        if old is None or old.host != task.host:
            yield PlannedAction(ActionKind.START, task, "new" if old is None else _removal_cause(old, task.host))
            continue
        causes = [*_differences(old, task), *network]
        if status is None or status.state in TERMINAL_STATES:
            yield PlannedAction(ActionKind.START, task, ", ".join([_stopped_cause(status), *causes]))
            continue
        peers = unknown_peers[observed.generations[task.name]] if task.name in observed.generations else []
        if peers := [peer for peer in peers if peer != task.short]:
            causes.append(f"it must know the address of {summarize_list(peers)}")
        if causes:
            yield PlannedAction(ActionKind.RESTART, task, ", ".join(causes), _loss_with(old, observed), bool(peers))
        elif updates := [*_differences_without_restart(old, task)]:
            yield PlannedAction(ActionKind.UPDATE, task, ", ".join(updates))


def _updates(desired: ClusterTopology, observed: ClusterTopology) -> Iterator[PlannedAction]:
    causes = _difference("logs", observed.logs, desired.logs, show_values=False)
    causes += _difference("warm", observed.warm, desired.warm)
    causes += _difference("lease", observed.lease, desired.lease)
    causes += _difference("folder", observed.folder, desired.folder)
    causes += _difference("notify", observed.notify, desired.notify, show_values=False)
    old_hosts, new_hosts = ({host.name: host for host in each.hosts} for each in (observed, desired))
    for name in dict.fromkeys([*old_hosts, *new_hosts]):
        causes += _presence("host", name, old_hosts, new_hosts) or _difference(
            f"host {name}", old_hosts[name], new_hosts[name], show_values=False
        )
    if PurePath(observed.spec).name != PurePath(desired.spec).name:  # the same file may be named by another path
        causes += _difference("spec file", observed.spec, desired.spec)
    for job in dict.fromkeys([*observed.max, *desired.max]):
        causes += _difference(f"max of {job}", observed.max.get(job), desired.max.get(job))
    for job in [job for job in desired.host_order if job in observed.host_order]:
        causes += _difference(f"hosts of {job}", observed.host_order[job], desired.host_order[job], show_values=False)
    yield from (PlannedAction(ActionKind.UPDATE, None, cause) for cause in causes)


def _unknown_peers(desired: ClusterTopology, observed: ObservedState, generation: int) -> list[str]:
    """Return the short names of the desired tasks whose address a server started in a generation does not know."""
    existing = {task.name: task for task in (*observed.topology.reserved, *observed.topology.tasks)}

    def is_known(task: Task) -> bool:
        old = existing.get(task.name)
        return old is not None and old.address == task.address and old.is_valid_in(generation)

    return [task.short for task in desired.tasks if not is_known(task)]


def _differences(old: Task, new: Task) -> Iterator[str]:
    """Yield the differences of a task that require a new process, without the values of env, which may be secret."""
    yield from _difference("port", old.port, new.port)
    yield from _difference("address", old.address_host, new.address_host)
    yield from _difference("cpus", old.cpus, new.cpus)
    yield from _difference("gpus", old.gpus, new.gpus)
    yield from _difference("threads", old.threads, new.threads)
    said = () if old.threads == new.threads else THREAD_VARIABLES
    for name in dict.fromkeys([*old.env, *new.env]):
        if name in said:
            continue
        yield from _presence("env", name, old.env, new.env) or _difference(
            f"env {name}", old.env[name], new.env[name], show_values=False
        )


def _differences_without_restart(old: Task, new: Task) -> Iterator[str]:
    yield from _difference("restart policy", old.restart, new.restart, show_values=False)
    yield from _difference("which env is secret", old.secrets, new.secrets, show_values=False)
    yield from _difference("which env is the host's", old.from_host, new.from_host, show_values=False)


def _presence(what: str, name: str, old: Container[str], new: Container[str]) -> list[str]:
    if name in old and name in new:
        return []
    return [f"{what} {name} {'added' if name in new else 'removed'}"]


def _difference(what: str, old: object, new: object, *, show_values: bool = True) -> list[str]:
    if old == new:
        return []
    return [f"{what} {_shown(old)} -> {_shown(new)}" if show_values else f"{what} changed"]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as YAML spells it
    return "none" if value is None else str(value)


def _loss_with(task: Task, observed: ObservedState) -> tuple[str, ...]:
    """Describe the losses when a task's process ends: variables, on any task in a cluster without a ps, and runs."""
    if task.name not in observed.generations:
        return ()
    has_ps = any(each.job == PS_JOB for each in observed.topology.tasks)
    variables = [f"the variables of {task.short}"] * (task.job == PS_JOB or not has_ps)
    return (*variables, *affected_runs([task.name], observed.runs))


def _removal_cause(task: Task, host: str | None) -> str:
    return "removed" if host is None else f"host {task.host} -> {host}"


def _stopped_cause(status: TaskStatus | None) -> str:
    if status is None:
        return "its host does not have it"
    how = f" ({status.last_exit.reason})" if status.last_exit else ""
    return f"it is {status.state.value}{how}"
