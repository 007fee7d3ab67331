"""The usage of hosts, agents and tasks, which `status` and `metrics` show: CPU time, memory, GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace

from tfcluster.core.status import ClusterStatus, HostLoad
from tfcluster.records import record_class


@record_class(frozen=True)
class ProcessUsage:
    """The usage of a process."""

    cpu_seconds: float  # since its start
    rss_bytes: int  # resident memory
    gpu_memory_bytes: int | None = None  # of it and its descendants, on all GPUs; None if the driver reports none


@record_class(frozen=True)
class HostUsage:
    """The usage of a cluster's processes on one host, and the load of the host."""

    agent: ProcessUsage | None  # None if it cannot be measured: the host lacks psutil, or no file descriptor is left
    tasks: dict[str, ProcessUsage]  # of each task that has a process and can be measured, by its name
    load: HostLoad | None = None  # of the whole host; None if it cannot be measured
    cpu_seconds: float = 0.0  # of all processes of the host since it was booted
    run_gpu_memory_bytes: dict[str, int] = field(default_factory=dict)  # by the run's id, as the driver reports it


_NOT_KNOWN = ProcessUsage(0.0, 0)


def with_usage(status: ClusterStatus, usages: Mapping[str, HostUsage]) -> ClusterStatus:
    """Return a status with the load of the hosts, and the GPU memory of tasks and runs."""
    loads = {host: usage.load for host, usage in usages.items()}
    used = {name: task for usage in usages.values() for name, task in usage.tasks.items()}
    run_memory: Counter[str] = Counter()
    for usage in usages.values():
        run_memory.update(usage.run_gpu_memory_bytes)
    return replace(
        status,
        hosts=tuple(replace(host, load=loads.get(host.host)) for host in status.hosts),
        tasks=tuple(
            replace(task, gpu_memory_bytes=each.gpu_memory_bytes)
            for task in status.tasks
            for each in [used.get(task.task, _NOT_KNOWN)]
        ),
        runs=tuple(replace(run, gpu_memory_bytes=run_memory.get(run.run)) for run in status.runs),
    )
