"""Clusters for tests of topologies and plans: a pretended agent that chooses ports, starts servers and stops them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tfcluster.core.plan import ActionKind, PlannedAction, plan
from tfcluster.core.reconcile import ObservedState, merge_with_observed
from tfcluster.core.resolve import resolve_spec
from tfcluster.core.states import TaskState
from tfcluster.core.status import LastExit, unknown_task_status
from tfcluster.core.topology import ClusterTopology
from tfcluster.spec.load import parse_spec

FIRST_PORT = 2222


def topology_of(text: str, spec_file: str = "cluster.yaml") -> ClusterTopology:
    return resolve_spec(parse_spec(text, spec_file, "c"), spec_file)


def with_ports(topology: ClusterTopology, before: ClusterTopology | None = None) -> ClusterTopology:
    """The topology with every port and GPU chosen that it leaves open; no port that the one before has on the host."""
    passed = {
        host.name: topology.ports_on(host.name) | (before.ports_on(host.name) if before else set())
        for host in topology.hosts
    }
    ports, gpus = {}, {}
    for task in (*topology.tasks, *topology.reserved):
        if task.port is None:
            taken = passed[task.host]
            ports[task.name] = next(port for port in range(FIRST_PORT, 65536) if port not in taken)
            taken.add(ports[task.name])
    for task in topology.tasks:
        if task.gpus and not task.gpu_ids:
            gpus[task.name] = [f"{task.short}-{number}" for number in range(task.gpus)]
    return topology.with_allocation(ports, gpus)


def observed_state(
    topology: ClusterTopology,
    generations: Mapping[str, int] | None = None,
    *,
    states: Mapping[str, TaskState] | None = None,
    last_exit: LastExit | None = None,
    runs: Mapping[str, Collection[str]] | None = None,
) -> ObservedState:
    """A cluster that is up; its tasks are ready, and were started in the generation of the topology."""
    generations = {task.name: topology.generation for task in topology.tasks} if generations is None else generations
    statuses = []
    for task in topology.tasks:
        other = TaskState.READY if task.name in generations else TaskState.STOPPED
        state = (states or {}).get(task.short, other)
        if state in (TaskState.FAILED, TaskState.STOPPED, TaskState.BACKING_OFF):
            generations = {name: number for name, number in generations.items() if name != task.name}
        statuses.append(replace(unknown_task_status(task, state), last_exit=last_exit))
    return ObservedState(topology, tuple(statuses), generations, runs or {})


def up(text: str, spec_file: str = "cluster.yaml") -> ObservedState:
    """The cluster of a spec, up and ready."""
    return observed_state(with_ports(topology_of(text, spec_file)))


def apply_plan(desired: ClusterTopology, observed: ObservedState) -> tuple[ObservedState, tuple[PlannedAction, ...]]:
    """The cluster after the plan that leads to a topology, and the plan."""
    complete = with_ports(merge_with_observed(desired, observed), observed.topology)
    operations = plan(complete, observed)
    touched = {
        each.task.name for each in operations if each.task and each.kind in (ActionKind.STOP, ActionKind.RESTART)
    }
    generations = {name: number for name, number in observed.generations.items() if name not in touched}
    for operation in operations:
        if operation.task is not None and operation.kind in (ActionKind.RESTART, ActionKind.START):
            generations[operation.task.name] = complete.generation
    return observed_state(complete, generations), operations


def observed_on(host: str, observed: ObservedState) -> ObservedState:
    """What the agent of one host knows of a cluster."""
    names = {task.name for task in observed.topology.on(host)}
    return replace(
        observed,
        tasks=tuple(status for status in observed.tasks if status.task in names),
        generations={name: number for name, number in observed.generations.items() if name in names},
    )


def restart_task(observed: ObservedState, name: str) -> ObservedState:
    """The cluster after a server died and was started again by itself."""
    return replace(observed, generations={**observed.generations, name: observed.topology.generation})
