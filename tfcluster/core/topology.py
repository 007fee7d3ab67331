"""A cluster laid out: every task with its host, address and resources, as agents and programs need it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tfcluster.core.hosts import THIS_MACHINE, Host
from tfcluster.errors import ClusterError, ExitCode

#: Jobs whose tasks hold variables or score them; programs compute elsewhere unless told otherwise.
PS_JOB = "ps"
#: Jobs that lead, in the order in which one is looked for; the first task of one is the cluster's head.
LEADING_JOBS = ("chief", "master")

_MASK = "***"


@dataclass(frozen=True)
class RestartPolicy:
    """When a task that ended is started again.

    Attributes:
        policy: `never`, `on-failure` or `always`.
        initial: Seconds before the second restart at most; the first comes at once, each further doubles the wait.
        max: Longest wait in seconds.
        limit: So many restarts within `window` seconds are made; the next end makes the task failed.
        window: Seconds.
    """

    policy: str
    initial: float
    max: float
    limit: int
    window: float


@dataclass(frozen=True)
class Task:
    """One TensorFlow server of a cluster.

    Attributes:
        job: Its job's name.
        index: Its index in the job, from 0.
        host: The name of the host that it runs on.
        address_host: The host part of the address that others dial.
        port: Its TCP port; None until one is chosen.
        cpus: Logical CPU devices that it offers.
        gpus: How many of its host's GPUs it owns.
        env: Environment variables set for it.
        restart: When it is started again.
        gpu_ids: The GPUs that it owns, as CUDA_VISIBLE_DEVICES names them; empty until they are chosen.
        known_from: Servers started in this generation of the topology, or a later one, know its address.
        known_until: Those started in this generation or later no longer do; None while they do.
        secrets: The names of those of `env` whose values are secret.
        from_host: The names of those of `env` that its host adds, and not its job.
    """

    job: str
    index: int
    host: str
    address_host: str
    port: int | None
    cpus: int
    gpus: int
    env: dict[str, str]
    restart: RestartPolicy
    gpu_ids: tuple[str, ...] = ()
    known_from: int = 0
    known_until: int | None = None
    secrets: tuple[str, ...] = ()
    from_host: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """TensorFlow's name of the task, as `/job:worker/task:1`."""
        return f"/job:{self.job}/task:{self.index}"

    @property
    def short(self) -> str:
        """The short name, as `worker:1`."""
        return f"{self.job}:{self.index}"

    @property
    def address(self) -> str:
        """`host:port`, or only the host while no port is chosen; an IPv6 address stands in brackets."""
        host = f"[{self.address_host}]" if ":" in self.address_host else self.address_host
        return host if self.port is None else f"{host}:{self.port}"

    def known_in(self, generation: int) -> bool:
        """Whether a server that was started in a generation of the topology knows the task's address."""
        return self.known_from <= generation and (self.known_until is None or generation < self.known_until)


@dataclass(frozen=True)
class LogLimits:
    """How much of what each task prints is kept.

    Attributes:
        size: Bytes of each file of a task's log.
        count: How many files each task's log has at most.
    """

    size: int = 10_000_000
    count: int = 5


@dataclass(frozen=True)
class ClusterTopology:
    """A cluster's tasks in the order of the spec, with what holds for all of them.

    Attributes:
        cluster: Its name.
        spec: The spec's file as the user named it.
        network: `closed` or `open`.
        tasks: Every task.
        logs: How much of what each task prints is kept.
        reserved: Tasks that do not run, whose addresses are kept: for those that are to come, or because servers that
            run on still know them.
        max: For how many tasks a job has addresses from the start, by job, where the spec says so.
        hosts: The machines that the tasks are on.
        generation: Counts the changes of the cluster. A server knows the addresses of the topology that it was started
            in, as long as it runs.
        spread: The names of the hosts that the tasks of a job go on, by job: the task of an index is on the one at that
            index, and after the last one comes the first one again.
        lease: A host that no command reaches for so many seconds takes its part of the cluster down; None for never.
    """

    cluster: str
    spec: str
    network: str
    tasks: tuple[Task, ...]
    logs: LogLimits = LogLimits()
    reserved: tuple[Task, ...] = ()
    max: dict[str, int] = field(default_factory=dict)
    hosts: tuple[Host, ...] = (THIS_MACHINE,)
    generation: int = 0
    spread: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lease: float | None = None

    def addresses(self) -> dict[str, list[str]]:
        """Addresses of the tasks by job, as TensorFlow's ClusterSpec has them."""
        return _addresses(self.tasks)

    def known_addresses(self) -> dict[str, list[str]]:
        """The addresses that a server started now knows, by job: also those kept for tasks that are to come."""
        return _addresses(task for task in (*self.tasks, *self.reserved) if task.known_until is None)

    def ports_on(self, host: str) -> set[int]:
        """The ports of all tasks of a host, running or not."""
        places = (*self.tasks, *self.reserved)
        return {task.port for task in places if task.port is not None and task.host == host}

    def on(self, host: str) -> tuple[Task, ...]:
        """The tasks that run on a host."""
        return tuple(task for task in self.tasks if task.host == host)

    def head(self) -> Task:
        """The task that leads: the first chief or master, else worker:0, else the first task."""
        for job in (*LEADING_JOBS, "worker"):
            for task in self.tasks:
                if task.job == job:
                    return task
        return self.tasks[0]

    def with_choices(self, ports: Mapping[str, int], gpus: Mapping[str, Sequence[str]]) -> ClusterTopology:
        """The same topology with what a host chose filled in: ports and GPUs, by a task's name."""

        def fill_in(task: Task) -> Task:
            gpu_ids = tuple(gpus.get(task.name, task.gpu_ids))
            return replace(task, port=ports.get(task.name, task.port), gpu_ids=gpu_ids)

        return replace(self, tasks=tuple(map(fill_in, self.tasks)), reserved=tuple(map(fill_in, self.reserved)))

    def masked(self) -> ClusterTopology:
        """The topology as it may be shown: without the values of environment variables."""
        return replace(
            self,
            tasks=tuple(replace(task, env=dict.fromkeys(task.env, _MASK)) for task in self.tasks),
            reserved=tuple(replace(task, env=dict.fromkeys(task.env, _MASK)) for task in self.reserved),
            hosts=tuple(replace(host, env=dict.fromkeys(host.env, _MASK)) for host in self.hosts),
        )

    def to_json(self) -> dict[str, Any]:
        """The topology as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ClusterTopology:
        """The topology that `to_json` described."""
        return cls(
            cluster=value["cluster"],
            spec=value["spec"],
            network=value["network"],
            tasks=tuple(map(_task_from_json, value["tasks"])),
            reserved=tuple(map(_task_from_json, value["reserved"])),
            logs=LogLimits(**value["logs"]),
            max=value["max"],
            hosts=tuple(map(Host.from_json, value["hosts"])),
            generation=value["generation"],
            spread={job: tuple(names) for job, names in value["spread"].items()},
            lease=value["lease"],
        )


def _addresses(tasks: Iterable[Task]) -> dict[str, list[str]]:
    jobs: dict[str, list[str]] = {}
    for task in tasks:
        jobs.setdefault(task.job, []).append(task.address)
    return jobs


def _task_from_json(value: dict[str, Any]) -> Task:
    tuples = {name: tuple(value[name]) for name in ("gpu_ids", "secrets", "from_host")}
    return Task(**{**value, **tuples, "restart": RestartPolicy(**value["restart"])})


def matching_tasks(wanted: Sequence[str], shorts: Sequence[str]) -> list[str]:
    """The tasks that a command's arguments name, in the cluster's order; all when there are no arguments.

    Args:
        wanted: Each a short name (`worker:1`), TensorFlow's name (`/job:worker/task:1`) or a job (`worker`).
        shorts: Short names of the cluster's tasks.

    Raises:
        ClusterError: One names nothing.
    """
    names = [_short(name) for name in wanted]
    for given, name in zip(wanted, names, strict=True):
        if not any(_names(name, short) for short in shorts):
            raise ClusterError(
                f"no task {given!r}",
                hint="The tasks are " + ", ".join(shorts) + "." if shorts else "The cluster never ran.",
                exit_code=ExitCode.USAGE,
            )
    return [short for short in shorts if not names or any(_names(name, short) for name in names)]


def _names(name: str, short: str) -> bool:
    return name == short or name == short.partition(":")[0]


def _short(name: str) -> str:
    job, _, index = name.removeprefix("/job:").partition("/task:")
    return f"{job}:{index}" if name.startswith("/job:") and index else job
