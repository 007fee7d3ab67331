"""The status of a cluster: the records of the table and the stable JSON of `status`, aggregated from all hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

from tfcluster.core.states import ClusterState, HostState, RunState, TaskState, cluster_state
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.records import record_class

#: The exit reason of a task for which no process was started.
NOT_STARTED = "not started"


@record_class(frozen=True)
class LastExit:
    """The last exit of a task: how and when its latest process ended."""

    reason: str  # the exit status in words, such as `exit code 1` or `SIGKILL`
    time: float  # Unix time in seconds
    detail: str = ""  # the cause that the task or its agent reported
    log: tuple[str, ...] = ()  # the last lines of the task's log, if the task is not restarted automatically
    expected: bool = False  # a command requested it, or the machine was rebooted: nothing is wrong with the task

    def __str__(self) -> str:
        """Describe how and when the process ended, such as `SIGKILL at 2026-01-31 12:00:00`, in local time."""
        return f"{self.reason} at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.time))}"


@record_class(frozen=True)
class GpuLoad:
    """The load of a GPU, as NVML reports it."""

    gpu: str  # its number, as CUDA_VISIBLE_DEVICES has it
    name: str  # its product name
    utilization_percent: float | None  # the time in which it computed; None if it does not say
    memory_used_bytes: int  # by all processes
    memory_total_bytes: int


@record_class(frozen=True)
class HostLoad:
    """The load of a host, including everything that runs there."""

    cpu_percent: float | None  # of all cores, in the last seconds; None if not known yet
    cpus: int  # logical processors
    memory_used_bytes: int  # memory that is not available to processes
    memory_total_bytes: int
    gpus: tuple[GpuLoad, ...] = ()  # empty without an NVIDIA driver


@record_class(frozen=True)
class TaskStatus:
    """The status of one task, a row of `status`; its fields are part of the stable JSON output."""

    task: str
    job: str
    index: int
    host: str
    address: str
    state: TaskState
    pid: int | None
    restarts: int
    uptime_s: float | None
    cpu_percent: float | None
    rss_bytes: int | None
    devices: tuple[str, ...]
    last_exit: LastExit | None
    gpu_memory_bytes: int | None = None
    probe_error: str | None = None  # why it has not answered its latest probe; None if it has

    @property
    def short(self) -> str:
        """Return the short name, such as `worker:1`."""
        return f"{self.job}:{self.index}"


@record_class(frozen=True)
class HostStatus:
    """The status of one host of a cluster."""

    host: str
    state: HostState
    agent_pid: int | None
    tensorflow: str | None
    load: HostLoad | None = None


@record_class(frozen=True)
class MemberStatus:
    """The status of one member of a launch: a process that was started."""

    task: str  # its short name, such as `worker:1`
    host: str
    pid: int
    exit_code: int | None = None  # None as long as it runs; negative if a signal has ended it


@record_class(frozen=True)
class RunStatus:
    """The status of one run that the cluster's agent knows."""

    run: str
    program: str
    state: RunState
    seconds: float
    gpu_memory_bytes: int | None = None
    script: str | None = None  # the script or the module; None for a bundled program
    members: tuple[MemberStatus, ...] = ()  # of a launch that is active


@record_class(frozen=True)
class JobStatus:
    """The job of a scheduler that the hosts are in; its fields are part of the stable JSON output."""

    id: int
    state: str  # `pending` or `running`
    nodes: tuple[str, ...]  # the node of each host, in the order of the hosts
    ends_in_s: float | None  # None if its time is not limited, or not known yet


@record_class(frozen=True)
class ClusterStatus:
    """The complete report of `status`; its fields are its stable JSON output."""

    cluster: str
    state: ClusterState
    spec: str
    hosts: tuple[HostStatus, ...]
    tasks: tuple[TaskStatus, ...]
    runs: tuple[RunStatus, ...]
    network: str = "closed"
    job: JobStatus | None = None
    started: float | None = None  # the Unix time of the `up` that started it, in seconds; None if it is not known


#: Why a host has no status: it is unreachable, or the cluster is not running there.
HostUnavailable = Literal[HostState.UNREACHABLE, HostState.DOWN]


def aggregate_status(
    topology: ClusterTopology, reports: Mapping[str, ClusterStatus | HostUnavailable]
) -> ClusterStatus:
    """Aggregate the status of a cluster: its tasks in the order of the spec, on all hosts.

    A task on an unreachable host is reported as unresponsive, because nothing more is known; a task on a host where the
    cluster is down, as stopped. The reports must be in the order of the spec; tasks on a host without one are omitted.
    """
    statuses = [report for report in reports.values() if isinstance(report, ClusterStatus)]
    reports_by_task = {task.task: task for status in statuses for task in status.tasks}
    tasks: list[TaskStatus] = []
    for task in topology.tasks:
        if task.name in reports_by_task:
            tasks.append(reports_by_task.pop(task.name))
        elif task.host in reports:
            is_unreachable = reports[task.host] is HostState.UNREACHABLE
            tasks.append(unknown_task_status(task, TaskState.UNRESPONSIVE if is_unreachable else TaskState.STOPPED))
    tasks += reports_by_task.values()  # tasks of a host that still has another topology
    hosts: list[HostStatus] = []
    for host, report in reports.items():
        hosts += report.hosts if isinstance(report, ClusterStatus) else [HostStatus(host, report, None, None)]
    return ClusterStatus(
        cluster=topology.cluster,
        state=_cluster_state(topology, tasks, hosts),
        spec=topology.spec,
        hosts=tuple(hosts),
        tasks=tuple(tasks),
        runs=tuple(run for status in statuses for run in status.runs),
        network=topology.network,
        job=next((status.job for status in statuses if status.job is not None), None),
        started=min((status.started for status in statuses if status.started is not None), default=None),
    )


def _cluster_state(topology: ClusterTopology, tasks: Sequence[TaskStatus], hosts: Sequence[HostStatus]) -> ClusterState:
    if topology.has_servers:
        return cluster_state([task.state for task in tasks])
    return ClusterState.RUNNING if all(host.state is HostState.UP for host in hosts) else ClusterState.DEGRADED


def unknown_task_status(task: Task, state: TaskState) -> TaskStatus:
    """Return the status of a task about which its host has reported nothing."""
    return TaskStatus(
        task.name, task.job, task.index, task.host, task.address, state, None, 0, None, None, None, (), None
    )
