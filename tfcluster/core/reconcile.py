"""Reconcile the observed state of a running cluster with a desired topology: which ports, GPUs and addresses stay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.core.status import TaskStatus
from tfcluster.core.topology import PRIVATE, ClusterTopology, Task, latest_topology
from tfcluster.errors import usage_error
from tfcluster.records import record_class


@record_class(frozen=True)
class ObservedState:
    """The observed state of a running cluster, possibly in part: an agent observes only the tasks of its own host."""

    topology: ClusterTopology
    tasks: tuple[TaskStatus, ...]  # those on the hosts whose state is known
    generations: Mapping[str, int]  # the generation in which the server of each task that has a process was started
    runs: Mapping[str, Collection[str]]  # the active runs, see `lost_run`, with the names of the tasks that each uses

    def is_unknown_to_all(self, task: Task) -> bool:
        """Return whether no running server knows the address of a task, which requires the status of every task."""
        is_complete = {status.task for status in self.tasks} >= {each.name for each in self.topology.tasks}
        return is_complete and not any(map(task.is_valid_in, self.generations.values()))

    @property
    def revision(self) -> str:
        """Return a value that changes with everything from which a plan is made, except the runs.

        An agent executes a plan only if the state of its host still has the revision from which the plan was made.
        """
        content = json.dumps([asdict(self.topology), dict(self.generations)], sort_keys=True)
        return f"{self.topology.generation}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def merge_observed(parts: Sequence[ObservedState]) -> ObservedState | None:
    """Merge the hosts' observations, if any; the latest topology counts if a change was not applied everywhere."""
    if not parts:
        return None
    return ObservedState(
        topology=latest_topology(part.topology for part in parts),
        tasks=tuple(task for part in parts for task in part.tasks),
        generations={task: number for part in parts for task, number in part.generations.items()},
        runs={run: tasks for part in parts for run, tasks in part.runs.items()},
    )


def merge_with_observed(desired: ClusterTopology, observed: ObservedState) -> ClusterTopology:
    """Return the topology of the next generation: the desired one, merged with the observed one.

    A task that existed keeps its port and its GPUs if the desired topology does not name them, unless it moves to
    another host. A removed task keeps its address in `reserved` as long as running servers may know it, so that no
    other task gets this address. Only ports and GPUs that were never allocated before remain to be chosen.

    For example, `worker: {tasks: 1}` merged with a running cluster in which worker:0 has port 2223 and worker:1 has
    port 2224 gives worker:0 at 2223, and worker:1 reserved at 2224.
    """
    carry_over = _CarryOver(desired, observed)
    tasks = tuple(map(carry_over.task, desired.tasks))
    reserved = tuple(map(carry_over.reserved, desired.reserved))
    generation = observed.topology.generation + 1
    names = {task.name for task in (*tasks, *reserved)}
    addresses = {_host_port(task) for task in (*tasks, *reserved)}
    removed = (
        replace(task, gpu_ids=(), valid_until_generation=task.valid_until_generation or generation)
        for task in (*observed.topology.tasks, *observed.topology.reserved)
        if task.name not in names and _host_port(task) not in addresses and not _is_forgotten(task, observed)
    )
    hosts = tuple(_with_ports(host, observed.topology) for host in desired.hosts)
    return replace(desired, tasks=tasks, reserved=(*reserved, *removed), hosts=hosts, generation=generation)


def _with_ports(host: Host, before: ClusterTopology) -> Host:
    """Return a desired host with the ports that it already has in a private cluster."""
    old = next((each for each in before.hosts if each.name == host.name), host)
    return replace(host, tls_port=host.tls_port or old.tls_port, first_program_port=old.first_program_port)


class _CarryOver:
    """Carries over the ports and GPUs of observed tasks to desired ones."""

    def __init__(self, desired: ClusterTopology, observed: ObservedState) -> None:
        before = observed.topology
        self._observed = observed
        self._existing = {task.name: task for task in (*before.reserved, *before.tasks)}
        self._running = {task.name for task in before.tasks}
        # The tasks for which the desired topology names a port, by host and port.
        self._owners = {_host_port(task): task.name for task in (*desired.tasks, *desired.reserved) if task.port}

    def task(self, task: Task) -> Task:
        """Return a desired task with the port and the GPUs that it already has, as far as it can keep them."""
        old = self._existing.get(task.name)
        gpu_ids: tuple[str, ...] = ()
        if old is not None and task.name in self._running and (old.host, old.gpus) == (task.host, task.gpus):
            gpu_ids = old.gpu_ids
        if old is None or not self._keeps_address(task, old):
            generation = self._observed.topology.generation + 1
            return replace(task, gpu_ids=gpu_ids, valid_from_generation=generation, valid_until_generation=None)
        valid_from = old.valid_from_generation
        return replace(
            task, port=old.port, gpu_ids=gpu_ids, valid_from_generation=valid_from, valid_until_generation=None
        )

    def reserved(self, task: Task) -> Task:
        """Return a desired task that does not run with the port that it already has, if it can keep it."""
        carried_over, old = replace(self.task(task), gpu_ids=()), self._existing.get(task.name)
        # No server is restarted because of a task that does not run. If a running server was started while the address
        # was not reserved, the address therefore counts as unknown to all servers started so far.
        if old is not None and not all(old.is_valid_in(each) for each in self._observed.generations.values()):
            return replace(carried_over, valid_from_generation=self._observed.topology.generation + 1)
        return carried_over

    def _keeps_address(self, task: Task, old: Task) -> bool:
        if (task.host, task.address_host) != (old.host, old.address_host) or old.port is None:
            return False
        return task.port == old.port or (
            task.port is None and self._owners.get(_host_port(old), task.name) == task.name
        )


def scale(observed: ClusterTopology, counts: Mapping[str, int]) -> ClusterTopology:
    """Return the topology with a different number of tasks in some jobs; 0 removes a job.

    An added task is placed on the next host in the job's placement order and otherwise copies the last task of its job.
    Raises ClusterError if a job does not exist, no task would remain, or a number is too large.
    """
    available = [task for task in observed.reserved if task.valid_until_generation is None]
    samples = {task.job: task for task in (*observed.reserved, *observed.tasks) if task.job in observed.host_order}
    for job in counts:
        if job not in samples:
            raise usage_error(
                f"cluster {observed.cluster!r} has no job {job!r}",
                f"Its jobs are {', '.join(observed.addresses())}; `tfcluster up SPEC` adds one that the spec has.",
            )
    unchanged = sum(task.job not in counts for task in observed.tasks)
    if (total := unchanged + sum(counts.values())) > settings.MAX_TASKS:
        raise usage_error(f"{total} tasks: a cluster has at most {settings.MAX_TASKS}", "Ask for fewer.")
    tasks: list[Task] = []
    reserved: list[Task] = []
    for job in dict.fromkeys([*observed.addresses(), *samples]):
        slots = [task for task in (*observed.tasks, *available) if task.job == job]
        before = sum(task.job == job for task in observed.tasks)
        count = counts.get(job, before)
        slots += [_next(samples[job], index, observed) for index in range(len(slots), count)]
        tasks += slots[:count]
        reserved += slots[count : max(observed.max.get(job, 0), count)]
    if not tasks:
        raise usage_error(
            f"no task of cluster {observed.cluster!r} would remain", f"`tfcluster down -c {observed.cluster}` stops it."
        )
    return replace(observed, tasks=tuple(tasks), reserved=tuple(reserved))


def _host_port(task: Task) -> tuple[str, int | None]:
    """Return the host and port of a task, unique in a cluster: a server listens on every interface of its host."""
    return task.host, task.port


def _is_forgotten(task: Task, observed: ObservedState) -> bool:
    return task.valid_until_generation is not None and observed.is_unknown_to_all(task)


def _next(sample: Task, index: int, topology: ClusterTopology) -> Task:
    """Return a new task of a job, copied from another task of the job and placed by the job's placement order."""
    names = topology.host_order[sample.job]
    host = next(host for host in topology.hosts if host.name == names[index % len(names)])
    own = {name: value for name, value in sample.env.items() if name not in sample.from_host}
    is_same = sample.host == host.name or topology.network == PRIVATE
    return replace(
        sample,
        index=index,
        host=host.name,
        address_host=sample.address_host if is_same else host.address,
        port=None,
        env={**host.env, **own},
        gpu_ids=(),
        valid_from_generation=0,
        valid_until_generation=None,
        from_host=tuple(name for name in host.env if name not in own),
    )
