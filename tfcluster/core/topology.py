"""The resolved topology of a cluster: every task with its host, address and resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from fnmatch import fnmatchcase

from tfcluster import settings
from tfcluster.core.hosts import THIS_MACHINE, Host
from tfcluster.errors import ClusterError, usage_error
from tfcluster.records import record_class

#: Who can connect to the tasks: processes in the cluster's own network; those on its hosts; everyone.
PRIVATE, CLOSED, OPEN = "private", "closed", "open"
#: What limits the threads of TensorFlow's pools, and those of OpenMP, which NumPy's libraries read too.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
#: The job whose tasks hold the variables or evaluate the model; programs compute on other tasks by default.
PS_JOB = "ps"
#: The jobs whose first task is the cluster's head, in the order in which they are tried.
LEADING_JOBS = ("chief", "master")

_MASK = "***"


@record_class(frozen=True)
class RestartPolicy:
    """The restart policy of a task: when it is restarted after an exit, with exponential back-off.

    The first restart is immediate; each further restart doubles the back-off. After `limit` restarts within the window,
    the next exit fails the task.
    """

    policy: str  # `never`, `on-failure` or `always`
    initial: float  # maximum back-off before the second restart, in seconds
    max: float  # maximum back-off in seconds
    limit: int  # the number of restarts allowed within `window` seconds
    window: float


@record_class(frozen=True)
class Task:
    """One task of a cluster: one TensorFlow server, of the generation of the topology in which it was started."""

    job: str
    index: int  # in the job, from 0
    host: str
    address_host: str  # the host part of the address that the other tasks connect to
    port: int | None  # None until a port is allocated
    cpus: int  # the number of logical CPU devices that it offers
    gpus: int  # the number of its host's GPUs that it has to itself
    env: dict[str, str]
    restart: RestartPolicy
    gpu_ids: tuple[str, ...] = ()  # these GPUs, as CUDA_VISIBLE_DEVICES names them; empty until they are allocated
    valid_from_generation: int = 0  # the first generation whose servers know its address
    valid_until_generation: int | None = None  # the first whose servers do not; None while new servers learn it
    secrets: tuple[str, ...] = ()  # the names of the variables in `env` whose values are secret
    from_host: tuple[str, ...] = ()  # the names of the variables in `env` that come from its host and not from its job

    @property
    def name(self) -> str:
        """Return TensorFlow's name of the task, such as `/job:worker/task:1`."""
        return f"/job:{self.job}/task:{self.index}"

    @property
    def short(self) -> str:
        """Return the short name, such as `worker:1`."""
        return f"{self.job}:{self.index}"

    @property
    def address(self) -> str:
        """Return `host:port`, or only the host until a port is allocated; an IPv6 address is put in brackets."""
        return join_address(self.address_host, self.port)

    @property
    def variables(self) -> dict[str, str]:
        """Return `env`, without the host's list of GPUs if the task has its own GPUs of that list."""
        is_divided = self.gpus > 0 and "CUDA_VISIBLE_DEVICES" in self.from_host
        return {name: value for name, value in self.env.items() if not (is_divided and name == "CUDA_VISIBLE_DEVICES")}

    @property
    def threads(self) -> int | None:
        """Return with how many threads an operation computes; None if TensorFlow chooses, which takes all cores."""
        written = self.env.get(THREAD_VARIABLES[0], "")
        return int(written) if written.isdecimal() and int(written) > 0 else None

    @property
    def lost_secrets(self) -> list[str]:
        """Return the names of the secret variables whose values are lost: no stored topology has them."""
        return [name for name in self.secrets if name not in self.env]

    def is_valid_in(self, generation: int) -> bool:
        """Return whether a server that was started in a generation of the topology knows the task's address."""
        until = self.valid_until_generation
        return self.valid_from_generation <= generation and (until is None or generation < until)


@record_class(frozen=True)
class LogLimits:
    """The limits on the stored output of tasks and runs."""

    size: int = settings.LOG_FILE_BYTES  # of each file of a task's log, in bytes
    count: int = settings.LOG_FILES  # maximum number of files of each task's log
    run: int = settings.RUN_OUTPUT_BYTES  # of the stored output of a run, in bytes
    runs: int = settings.RUNS_OUTPUT_BYTES  # of the stored output of all runs on a host together, in bytes


@record_class(frozen=True)
class Notify:
    """The receivers of notices."""

    webhook: str | None = field(repr=False)  # secret; None for none, or while its value is lost
    command: str | None  # run for each notice
    events: tuple[str, ...]


@record_class(frozen=True)
class ClusterTopology:
    """The topology of a cluster: its tasks in the order of the spec, and the settings that apply to all of them."""

    cluster: str
    spec: str  # the spec's file as the user named it
    network: str  # `private`, `closed` or `open`
    tasks: tuple[Task, ...]
    logs: LogLimits = LogLimits()
    # Tasks that do not run but whose addresses are kept, either for tasks to be added later or because running servers
    # still know the addresses.
    reserved: tuple[Task, ...] = ()
    # The number of tasks of a job that have addresses from the start, by job, for the jobs where the spec sets it.
    max: dict[str, int] = field(default_factory=dict)
    hosts: tuple[Host, ...] = (THIS_MACHINE,)
    # The number of changes made to the cluster. A server knows the addresses of the topology in which it was started,
    # as long as it runs.
    generation: int = 0
    # The placement order: the names of the hosts for the tasks of a job, by job. The task with an index is on the host
    # at this index, wrapping around after the last host.
    host_order: dict[str, tuple[str, ...]] = field(default_factory=dict)
    warm: bool = True  # whether a fork server that has imported TensorFlow is kept ready for runs
    # The lease in seconds: a host that no command has reached for this long stops its part of the cluster; None for no
    # lease.
    lease: float | None = None
    # The tasks that the change to this generation leaves alone, with the generation in which the server of each was
    # started, or None if it waits for its next restart; any other server is stopped first.
    kept: dict[str, int | None] = field(default_factory=dict)
    # The folder that the servers of localhost run in: that of the spec. None for the folder of those on other hosts.
    folder: str | None = None
    has_servers: bool = True  # without them, the tasks are only where groups of processes run
    notify: Notify | None = None

    @property
    def closes_ports(self) -> bool:
        """Return whether the hosts close the ports of their tasks; what connects to a pod, a NetworkPolicy says."""
        return self.network == CLOSED and not any(host.image for host in self.hosts)

    def describe_launch(self) -> str:
        """Return a note on a cluster that `launch` has brought up; empty for any other."""
        if self.has_servers or self.lease is None:
            return ""
        return (
            f"note: a `tfcluster launch` has started {self.cluster}, and stops it at its end; if that command was "
            f"killed, the cluster stops by itself after {self.lease:g} s without contact from any command"
        )

    def addresses(self) -> dict[str, list[str]]:
        """Return the addresses of the tasks by job, in the form of TensorFlow's ClusterSpec."""
        return _addresses(self.tasks)

    def known_addresses(self) -> dict[str, list[str]]:
        """Return the addresses that a server started now knows, by job, including those reserved for later tasks."""
        return _addresses(task for task in (*self.tasks, *self.reserved) if task.valid_until_generation is None)

    def ports_on(self, host: str) -> set[int]:
        """Return the ports of all tasks of a host, including reserved tasks."""
        tasks = (*self.tasks, *self.reserved)
        return {task.port for task in tasks if task.port is not None and task.host == host}

    def program_ports_on(self, host: str) -> tuple[int, ...]:
        """Return the ports for programs on a host to which the other hosts can connect; empty for any port."""
        is_forwarded = self.network == PRIVATE and len(self.hosts) > 1
        return next((each.program_ports for each in self.hosts if each.name == host and is_forwarded), ())

    def on(self, host: str) -> tuple[Task, ...]:
        """Return the tasks that run on a host."""
        return tuple(task for task in self.tasks if task.host == host)

    def head(self) -> Task:
        """Return the head task: the first chief or master, else worker:0, else the first task."""
        for job in (*LEADING_JOBS, "worker"):
            for task in self.tasks:
                if task.job == job:
                    return task
        return self.tasks[0]

    def with_tls_port(self, host: str, port: int | None) -> ClusterTopology:
        """Return the topology with the port that was allocated for a host's forwarder, if any."""
        hosts = (replace(each, tls_port=port) if port and each.name == host else each for each in self.hosts)
        return replace(self, hosts=tuple(hosts))

    def with_allocation(self, ports: Mapping[str, int], gpus: Mapping[str, Sequence[str]]) -> ClusterTopology:
        """Return the topology completed with the ports and GPUs that a host allocated, by the tasks' names."""

        def fill_in(task: Task) -> Task:
            gpu_ids = tuple(gpus.get(task.name, task.gpu_ids))
            return replace(task, port=ports.get(task.name, task.port), gpu_ids=gpu_ids)

        return self._with_tasks(fill_in)

    def on_hosts(self, hosts: Iterable[Host]) -> ClusterTopology:
        """Return the topology with its hosts as they are once they exist: the nodes of a job, or pods."""
        moved = replace(self, hosts=tuple(hosts))
        addresses = {old.address: new.address for old, new in zip(self.hosts, moved.hosts, strict=True)}
        return moved._with_tasks(
            lambda task: replace(task, address_host=addresses.get(task.address_host, task.address_host))
        )

    def _with_tasks(self, change: Callable[[Task], Task]) -> ClusterTopology:
        return replace(self, tasks=tuple(map(change, self.tasks)), reserved=tuple(map(change, self.reserved)))

    def masked(self) -> ClusterTopology:
        """Return the topology for display, with masked values of environment variables."""
        return replace(
            self._with_tasks(lambda task: replace(task, env=dict.fromkeys(task.env, _MASK))),
            hosts=tuple(replace(host, env=dict.fromkeys(host.env, _MASK)) for host in self.hosts),
            notify=self.notify and replace(self.notify, webhook=self.notify.webhook and _MASK),
        )


def join_address(host: str, port: int | None) -> str:
    """Return `host:port`, or only the host without a port; an IPv6 address is put in brackets."""
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def check_address(address: str) -> None:
    """Raise a ClusterError if text that has arrived is not the `host:port` of a place to connect to."""
    host, _, port = address.rpartition(":")
    with suppress(UnicodeError):
        host.encode("idna")  # as a lookup of the name does
        if host and "\0" not in host and len(port) <= 5 and port.isascii() and port.isdigit() and int(port) < 1 << 16:
            return
    raise ClusterError(f"{address!r:.{settings.UNEXPECTED_DATA_CHARACTERS}} is not the host:port of a server")


def check_numbers(topology: ClusterTopology) -> None:
    """Raise a ClusterError if a port or a number of devices of a topology that has arrived is impossible."""
    tasks = (*topology.tasks, *topology.reserved)
    ports = [*(task.port for task in tasks), *(host.tls_port for host in topology.hosts)]
    ports += [host.first_program_port for host in topology.hosts]
    counts = [number for task in tasks for number in (task.cpus, task.gpus)]
    if any(port is not None and not 0 < port < 1 << 16 for port in ports) or any(not 0 <= n < 1 << 16 for n in counts):
        raise ClusterError("a topology with an impossible port or number of devices arrived")


def latest_topology(topologies: Iterable[ClusterTopology]) -> ClusterTopology:
    """Return the latest of the hosts' topologies, which differ if a change was not applied everywhere."""
    return max(topologies, key=lambda topology: topology.generation)


def _addresses(tasks: Iterable[Task]) -> dict[str, list[str]]:
    jobs: dict[str, list[str]] = {}
    for task in tasks:
        jobs.setdefault(task.job, []).append(task.address)
    return jobs


def matching_tasks(arguments: Sequence[str], shorts: Sequence[str]) -> list[str]:
    """Return the short names of the tasks that match a command's arguments, in the cluster's order.

    Each argument is a short name (`worker:1`), TensorFlow's name (`/job:worker/task:1`) or a job (`worker`), even with
    wildcards as in a shell (`worker:*`, `worker:[0-3]`). Without arguments, all tasks match. Raises ClusterError if an
    argument matches no task.
    """
    names = [short_task_name(name) for name in arguments]
    for argument, name in zip(arguments, names, strict=True):
        if not any(_matches(name, short) for short in shorts):
            raise usage_error(
                f"no task {argument!r}",
                "The tasks are " + ", ".join(shorts) + "." if shorts else "The cluster never ran.",
            )
    return [short for short in shorts if not names or any(_matches(name, short) for name in names)]


def unknown_log(name: str, tasks: str) -> ClusterError:
    """Return the error for a name of neither a task nor a run; `tasks` is the hint that names the tasks, if any."""
    return usage_error(f"no task or run {name!r}", f"{tasks} `tfcluster runs` lists the runs.".lstrip())


def _matches(name: str, short: str) -> bool:
    return fnmatchcase(short, name) or fnmatchcase(short.partition(":")[0], name)


def short_task_name(name: str) -> str:
    """Return the short name for TensorFlow's name of a task; other text, such as a short name, stays as it is."""
    job, _, index = name.removeprefix("/job:").partition("/task:")
    return f"{job}:{index}" if name.startswith("/job:") and index else job
