"""Reconcile the observed state of a running cluster with a desired topology: which ports, GPUs and addresses stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tfcluster import settings
from tfcluster.core.status import TaskStatus
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.errors import ClusterError, ExitCode


@dataclass(frozen=True)
class ObservedState:
    """The observed state of a running cluster, possibly in part: an agent observes only the tasks of its own host.

    Attributes:
        topology: The topology of the running cluster.
        tasks: The status of the tasks on those hosts whose state is known.
        generations: The generation of the topology in which a task's server was started, by the task's name, for
            the tasks that have a process.
        runs: The active runs, each with the names of the tasks that it computes on.
    """

    topology: ClusterTopology
    tasks: tuple[TaskStatus, ...]
    generations: Mapping[str, int]
    runs: Mapping[str, Collection[str]]

    def nobody_knows(self, task: Task) -> bool:
        """Return whether it is certain that no running server knows the address of a task.

        This is certain only if the status of every task of the cluster is known.
        """
        is_whole = {status.task for status in self.tasks} >= {each.name for each in self.topology.tasks}
        return is_whole and not any(map(task.known_in, self.generations.values()))

    def to_json(self) -> dict[str, Any]:
        """Return the observed state as JSON values."""
        return {
            "topology": self.topology.to_json(),
            "tasks": [asdict(task) for task in self.tasks],
            "generations": dict(self.generations),
            "runs": {run: list(tasks) for run, tasks in self.runs.items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ObservedState:
        """Return the observed state that `to_json` encoded."""
        return cls(
            topology=ClusterTopology.from_json(value["topology"]),
            tasks=tuple(map(TaskStatus.from_json, value["tasks"])),
            generations=value["generations"],
            runs=value["runs"],
        )


def onto(wanted: ClusterTopology, found: ObservedState) -> ClusterTopology:
    """Merge the desired topology with the observed one.

    What the desired topology leaves open is carried over: a task that existed keeps its port and its GPUs, unless it
    moves to another host. A removed task keeps its address in `reserved` as long as running servers may know it, so
    that no other task gets this address.

    Args:
        wanted: The desired topology, from a spec or from `scaled`.
        found: The observed state of the running cluster.

    Returns:
        The topology of the next generation. Only ports and GPUs that were never allocated before remain to be chosen.
    """
    there = {task.name: task for task in (*found.topology.reserved, *found.topology.tasks)}
    running = {task.name for task in found.topology.tasks}
    generation = found.topology.generation + 1
    owners = {_place(task): task.name for task in (*wanted.tasks, *wanted.reserved) if task.port is not None}

    def settle(task: Task) -> Task:
        old = there.get(task.name)
        has_gpus = old is not None and task.name in running and (old.host, old.gpus) == (task.host, task.gpus)
        gpu_ids = old.gpu_ids if old is not None and has_gpus else ()
        if old is None or not _keeps_address(task, old, owners):
            return replace(task, gpu_ids=gpu_ids, known_from=generation, known_until=None)
        return replace(task, port=old.port, gpu_ids=gpu_ids, known_from=old.known_from, known_until=None)

    def settle_reserved(task: Task) -> Task:
        settled, old = replace(settle(task), gpu_ids=()), there.get(task.name)
        # No server is restarted because of a task that does not run. If a running server was started while the
        # address was not reserved, the address therefore counts as unknown to all servers started so far.
        if old is not None and not all(old.known_in(each) for each in found.generations.values()):
            return replace(settled, known_from=generation)
        return settled

    tasks = tuple(map(settle, wanted.tasks))
    reserved = tuple(map(settle_reserved, wanted.reserved))
    kept = {task.name for task in (*tasks, *reserved)}
    places = {_place(task) for task in (*tasks, *reserved)}
    left = (
        replace(task, gpu_ids=(), known_until=generation if task.known_until is None else task.known_until)
        for task in (*found.topology.tasks, *found.topology.reserved)
        if task.name not in kept and _place(task) not in places and not _is_forgotten(task, found)
    )
    return replace(wanted, tasks=tasks, reserved=(*reserved, *left), generation=generation)


def scaled(found: ClusterTopology, counts: Mapping[str, int]) -> ClusterTopology:
    """Return the topology with a different number of tasks in some jobs.

    An added task is placed on the next host in the job's placement order and otherwise copies the last task of its
    job.

    Args:
        found: The topology of the running cluster.
        counts: The desired number of tasks by job; 0 removes the job.

    Raises:
        ClusterError: A job does not exist, no task would remain, or a number is too large.
    """
    kept = [task for task in found.reserved if task.known_until is None]
    samples = {task.job: task for task in (*found.reserved, *found.tasks) if task.job in found.spread}
    for job, count in counts.items():
        if job not in samples:
            raise _refused(
                f"cluster {found.cluster!r} has no job {job!r}",
                f"Its jobs are {', '.join(found.addresses())}; `tfcluster up SPEC` adds one that the spec has.",
            )
        if count > settings.MAX_TASKS_PER_JOB:
            raise _refused(f"{job}={count}: a job has at most {settings.MAX_TASKS_PER_JOB} tasks", "Ask for fewer.")
    tasks: list[Task] = []
    reserved: list[Task] = []
    for job in dict.fromkeys([*found.addresses(), *samples]):
        places = [task for task in (*found.tasks, *kept) if task.job == job]
        before = sum(task.job == job for task in found.tasks)
        count = counts.get(job, before)
        places += [_next(samples[job], index, found) for index in range(len(places), count)]
        tasks += places[:count]
        reserved += places[count : max(found.max.get(job, 0), count)]
    if not tasks:
        raise _refused(
            f"no task of cluster {found.cluster!r} would be left", f"`tfcluster down -c {found.cluster}` stops it."
        )
    return replace(found, tasks=tuple(tasks), reserved=tuple(reserved))


def _place(task: Task) -> tuple[str, int | None]:
    """Return the host and port of a task.

    No two tasks may share this pair, because a server listens on every interface of its host.
    """
    return task.host, task.port


def _keeps_address(task: Task, old: Task, owners: Mapping[tuple[str, int | None], str]) -> bool:
    """Return whether a task keeps its previous address.

    Args:
        task: The task in the desired topology.
        old: The same task in the observed topology.
        owners: The task for which the desired topology names a port explicitly, by host and port.
    """
    if (task.host, task.address_host) != (old.host, old.address_host) or old.port is None:
        return False
    return task.port == old.port or (task.port is None and owners.get(_place(old), task.name) == task.name)


def _is_forgotten(task: Task, found: ObservedState) -> bool:
    return task.known_until is not None and found.nobody_knows(task)


def _next(sample: Task, index: int, topology: ClusterTopology) -> Task:
    """Return a new task of a job, copied from another task of the job and placed by the job's placement order."""
    names = topology.spread[sample.job]
    host = next(host for host in topology.hosts if host.name == names[index % len(names)])
    own = {name: value for name, value in sample.env.items() if name not in sample.from_host}
    return replace(
        sample,
        index=index,
        host=host.name,
        address_host=sample.address_host if sample.host == host.name else host.address,
        port=None,
        env={**host.env, **own},
        gpu_ids=(),
        known_from=0,
        known_until=None,
        from_host=tuple(name for name in host.env if name not in own),
    )


def _refused(message: str, hint: str) -> ClusterError:
    return ClusterError(message, hint=hint, exit_code=ExitCode.USAGE)
