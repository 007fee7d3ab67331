"""What the agent's request handlers and its periodic checks share: the parts of the agent."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.agent.forwarder import ForwarderSupervisor
from tfcluster.agent.host_end import HostEnd
from tfcluster.agent.logs.cluster_logs import LogCollector
from tfcluster.agent.notices import IncidentMonitor, Notifier
from tfcluster.agent.ports import NO_SOCKET_TABLES, PortAllocator
from tfcluster.agent.preflight import HostCheckInput, gpu_ids
from tfcluster.agent.runs.manager import ContainerCleaner, RunManager
from tfcluster.agent.runs.remote_tasks import RemoteTaskMonitor
from tfcluster.agent.runs.stacks import StackReader
from tfcluster.agent.runs.waits import WaitMonitor
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.subprocesses import ChildTimeoutError, run_in_child
from tfcluster.agent.tasks.health import ProbeClient
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.agent.usage import UsageMeter
from tfcluster.core.states import ClusterState, HostState, TaskState, cluster_state
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.core.topology import PRIVATE, ClusterTopology, LogLimits
from tfcluster.errors import ClusterError
from tfcluster.private_network import PrivateNetwork
from tfcluster.process_mark import mark_of


class Lease:
    """Measures the time since a command was last connected to the agent.

    The lease is not in the journal: only a command can start the next agent, and that command renews the lease.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_renewal = clock()
        self._requests = 0

    @contextmanager
    def renew(self) -> Iterator[None]:
        """Renew the lease until the context is left: a request is in progress."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._last_renewal = self._clock()

    def has_expired(self, seconds: float | None) -> bool:
        """Return whether the lease has expired (the host was abandoned).

        `seconds` is the duration of the lease: how long there may be no request. None means that it never expires.
        """
        return seconds is not None and not self._requests and self._clock() - self._last_renewal >= seconds


class AgentContext:
    """The parts of the agent of one cluster on one host."""

    def __init__(self, cluster: str, host: str, state_dir: StateDir, secrets_file: Path) -> None:
        self.cluster = cluster
        self.host = host
        self.state_dir = state_dir
        self.quitting = asyncio.Event()  # the shutdown event: set when the agent has nothing left to do
        self.is_going_down = False  # whether the cluster is going down or is down
        # Whether processes are being stopped of a cluster whose journal cannot be read.
        self.is_killing_unrecorded = False
        self.lease = Lease()
        self.network = ClusterNetwork(f"tfcluster: {cluster} private network", self._record_network)
        self.ports = PortAllocator()
        self.prober = ProbeClient(f"tfcluster: {cluster} health prober", self.network.enter)
        self.log_collector = LogCollector(f"tfcluster: {cluster} log writer", state_dir)
        self.secrets = SecretStore(secrets_file)
        self.supervisor = TaskSupervisor(
            host, state_dir, self.secrets, self.ports, self.prober, self.log_collector, self.network
        )
        history = self.supervisor.history
        self.forwarder = ForwarderSupervisor(cluster, host, state_dir, self.network, self.secrets, history)
        self.remote_tasks = RemoteTaskMonitor(self.supervisor, self.prober, self._tasks_in_use, self.report_lost_tasks)
        cleaner = ContainerCleaner(self.supervisor, self.prober)
        title = f"tfcluster: {cluster} fork server"
        self.runs = RunManager(title, state_dir, cleaner.clear, self._check_tasks)
        self.stacks = StackReader()
        self.notices = Notifier(f"tfcluster: {cluster} notice", self.supervisor)
        self.usage = UsageMeter(cluster, self.supervisor, self.runs)
        self.incidents = IncidentMonitor(cluster, self.supervisor, self.prober, self.notices)
        self.runs.on_end = self.incidents.note_end_of_run
        self.runs.log_limits = lambda: topology.logs if (topology := self.supervisor.topology) else LogLimits()
        self.runs.fork_server.is_warm = lambda: (topology := self.supervisor.topology) is None or topology.warm
        self.waits = WaitMonitor(cluster, self.supervisor, self.remote_tasks, self.runs, self.stacks)
        self.runs.explain_wait = self.waits.explain
        title = f"tfcluster: {cluster} question about the end of the host"
        self.host_end = HostEnd(title, host, self.supervisor, self.runs.warn_of_end)
        self._snapshot: tuple[tuple[int, int], float, ClusterStatus] | None = None

    @property
    def status_interval(self) -> float:
        """The seconds between two statuses that are sent at changes: the more tasks, the longer one takes to make."""
        return len(self.supervisor.tasks) * settings.STATUS_INTERVAL_PER_TASK_SECONDS

    @property
    def is_idle(self) -> bool:
        """Whether the agent has no cluster to supervise."""
        return self.supervisor.topology is None and not self.is_killing_unrecorded

    def reject_if_going_down(self) -> None:
        """Raise ClusterError if the cluster is going down."""
        if self.is_going_down:
            cluster = self.supervisor.require_cluster().cluster
            raise ClusterError(f"cluster {cluster!r} is going down", hint="Try again when `tfcluster down` is done.")

    def move_to(self, network: str) -> None:
        """Have the processes that the agent starts from now on be in a private network, or in this machine's.

        `network` is that of a topology. Raises ClusterError if this machine does not allow a private network.
        """
        if (network == PRIVATE) == (self.network.private is not None):
            return
        if network == PRIVATE:
            try:
                self.network.make()
            except OSError as error:
                raise ClusterError(f"no private network can be made for the cluster: {error.strerror}") from error
        else:
            self.network.leave()
        self.prober.stop()  # the next probe starts one there
        self._use_ports()

    def adopt_network(self, private: PrivateNetwork) -> None:
        """Adopt the private network of an earlier agent; if that fails, the event log says why no task can start."""
        try:
            self.network.adopt(private, mark_of(self.state_dir.path))
        except (OSError, ClusterError) as error:
            detail = error.message if isinstance(error, ClusterError) else str(error)
            self.supervisor.history.record("network-lost", detail=detail)
        self._use_ports()

    def _use_ports(self) -> None:
        private = self.network.private
        self.ports.move_to(None if private is None else private.socket_tables)

    async def find_gpus(self, topology: ClusterTopology) -> list[str]:
        """List the GPUs that a topology's tasks on this host may use, in a child process: the driver may block.

        None are listed if no task needs one, or names one. Raises ClusterError: the driver does not answer.
        """
        if not any(task.gpus or "CUDA_VISIBLE_DEVICES" in task.env for task in topology.on(self.host)):
            return []
        # On this machine an agent has the environment of the command, without that of the host in the spec.
        env = next((host.env for host in topology.hosts if host.name == self.host), {})
        limit = settings.HOST_CHECKS_SECONDS
        try:
            return list(await run_in_child("tfcluster: GPUs", lambda: gpu_ids({**os.environ, **env}), limit))
        except ChildTimeoutError as problem:
            message = f"{self.host}: the driver of the GPUs has not answered within {limit:g} s"
            raise ClusterError(message, hint="`nvidia-smi` there shows whether it works.") from problem

    def make_check_input(self, topology: ClusterTopology, gpus: Sequence[str] = ()) -> HostCheckInput:
        """Return a topology that this host is checked for, with what the host has for it, such as these GPUs.

        If its tasks will be in another network than those of the cluster are now, the ports are those of an allocator
        of its own: the agent reserves them when it moves there.
        """
        current = self.supervisor.topology
        ports, own_ports = self.ports, current.ports_on(self.host) if current else set()
        if (topology.network == PRIVATE) != (self.network.private is not None):
            ports, own_ports = PortAllocator(), set()
            if topology.network == PRIVATE:
                ports.move_to(NO_SOCKET_TABLES)
        folder, forwarder = self.state_dir.path, self.forwarder
        return HostCheckInput(topology, self.host, folder, ports, gpus, own_ports, forwarder.ports, forwarder.port)

    def _record_network(self) -> None:
        """Record that another process holds the private network."""
        self._use_ports()
        if self.supervisor.topology is not None:
            self.supervisor.write_journal()

    def report_lost_tasks(self) -> None:
        """Report to the runs which tasks are down; those that cannot continue without them end."""
        tasks = self.supervisor.tasks.items()
        down = {name: task.describe_problem() for name, task in tasks if task.machine.state is not TaskState.READY}
        self.runs.on_task_health(self._task_names(), {**down, **self.remote_tasks.down})

    async def _check_tasks(self) -> dict[str, str]:
        """Probe the tasks and report those that are down: a run may have failed before health checks noticed one.

        Return why tasks do not serve that are not down: on a busy machine, a healthy one may not answer in time.
        """
        silent, _ = await asyncio.gather(
            self.supervisor.probe_all(settings.RUN_PROBE_SECONDS), self.remote_tasks.refresh()
        )
        self.report_lost_tasks()
        return {task.spec.name: task.describe_problem() for task in silent}

    def _task_names(self) -> list[str]:
        topology = self.supervisor.topology
        return [task.name for task in topology.tasks] if topology else []

    def _tasks_in_use(self) -> set[str]:
        return {name for names in self.runs.tasks_in_use(self._task_names()).values() for name in names}

    def recent_status(self) -> ClusterStatus:
        """Return a status in which every change is, and whose measured values may be a moment old.

        Requests that arrive at the same time share it.
        """
        changes, now = (self.supervisor.changed.count, self.runs.changed.count), time.monotonic()
        if self._snapshot is not None:
            of_changes, taken_at, status = self._snapshot
            if of_changes == changes and now - taken_at < settings.STATUS_REUSE_SECONDS:
                self.supervisor.require_cluster()
                return status
        status = self.status()
        self._snapshot = changes, now, status
        return status

    def status(self) -> ClusterStatus:
        """Return the status of the cluster, as far as this host knows it."""
        topology = self.supervisor.require_cluster()
        tasks = tuple(task.status() for task in self.supervisor.tasks.values())
        version = self.supervisor.tensorflow.version if self.supervisor.tensorflow else None
        return ClusterStatus(
            cluster=topology.cluster,
            state=cluster_state([task.state for task in tasks]) if topology.has_servers else ClusterState.RUNNING,
            spec=topology.spec,
            hosts=(HostStatus(self.host, HostState.UP, os.getpid(), version),),
            tasks=tasks,
            runs=self.runs.statuses(),
            network=topology.network,
            job=self.host_end.status(),
            started=self.supervisor.up_since,
        )
