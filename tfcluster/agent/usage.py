"""Measures how busy this host is, and what the tasks use, for commands that ask; while none asks it costs nothing.

Only the processor time of the host is sampled at each health check too, as that of the tasks is: a percentage takes an
earlier value. The load of GPUs can take long: a separate process reads it, which exists only on hosts with a driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.event_loop import Timer
from tfcluster.agent.meters import HostTime, ProcessMeter, host_memory, host_time
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.subprocesses import HelperProcess
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.status import GpuLoad, HostLoad
from tfcluster.core.usage import HostUsage
from tfcluster.os import procfs
from tfcluster.processes.gpus import report_gpus
from tfcluster.protocol.codec import Message
from tfcluster.protocol.serialization import decode

_NVIDIA_DEVICE = Path("/dev/nvidiactl")  # it exists where the NVIDIA driver is loaded


@dataclass(frozen=True)
class GpuReport:
    """What NVML tells."""

    gpus: tuple[GpuLoad, ...] = ()
    memory: dict[int, int] = field(default_factory=dict)  # bytes by pid, if the driver reports them


class GpuReporter(HelperProcess):
    """Asks a process for the load of the GPUs. The process exists while commands ask, and only with a driver."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._answer: asyncio.Future[Message] | None = None
        self._idle = Timer()
        self._latest = GpuReport()

    async def read(self, timeout: float) -> GpuReport:
        """Return the load of the GPUs, or the one before if the driver takes longer."""
        if not _NVIDIA_DEVICE.exists():
            return GpuReport()
        self._idle.set(settings.GPU_REPORT_IDLE_SECONDS, self.kill)
        with contextlib.suppress(OSError, TimeoutError):
            if self._answer is None or self._answer.done():  # else the driver has not answered the question before
                self.ensure_started()
                self._answer = asyncio.get_running_loop().create_future()  # after the fork, which may fail
                self.send({})
            async with asyncio.timeout(timeout):
                message = await asyncio.shield(self._answer)
            self._latest = GpuReport(decode(tuple[GpuLoad, ...], message["gpus"]), dict(message["memory"]))
        return self._latest

    def run(self, agent: socket.socket) -> None:
        """Report the GPUs, in the process."""
        report_gpus(agent)

    def handle_message(self, message: Message) -> None:
        """Take the answer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def handle_exit(self) -> None:
        """Forget the latest answer, and let those that wait have none."""
        self._latest = GpuReport()
        self.handle_message({"gpus": [], "memory": []})


class UsageMeter:
    """Measures the usage of this host."""

    def __init__(self, cluster: str, supervisor: TaskSupervisor, runs: RunManager) -> None:
        self._supervisor = supervisor
        self._runs = runs
        self._gpus = GpuReporter(f"tfcluster: {cluster} GPU reporter")
        self._own = ProcessMeter(os.getpid())
        self._host_times: list[tuple[float, HostTime]] = []  # the latest two, by their monotonic time
        self._reading: asyncio.Future[HostUsage] | None = None
        self._read_at = 0.0

    def sample_host(self) -> None:
        """Sample the processor time of the host, to compare later values with it."""
        if (sample := host_time()) is not None:
            self._host_times = [*self._host_times[-1:], (time.monotonic(), sample)]

    async def read(self) -> HostUsage:
        """Measure the usage; requests that arrive at the same time share it."""
        self._supervisor.require_cluster()
        if self._reading is None or (
            self._reading.done() and time.monotonic() - self._read_at >= settings.STATUS_REUSE_SECONDS
        ):
            self._read_at = time.monotonic()
            self._reading = asyncio.ensure_future(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> HostUsage:
        tasks = self._supervisor.tasks.items()
        meters = {name: task.meter for name, task in tasks if task.meter is not None}
        usages = {name: usage for name, meter in meters.items() if (usage := meter.read()) is not None}
        own, host, memory = self._own.read(), host_time(), host_memory()
        gpus = await self._gpus.read(settings.USAGE_WAIT_SECONDS)
        load = None
        if host is not None and memory is not None:
            load = HostLoad(self._percent(host), os.cpu_count() or 1, *memory, gpus.gpus)
        drivers = {run.process.pid: run.id for run in self._runs.runs.values() if run.is_active and run.process}
        of_tasks = sum_by_owner(gpus.memory, {meter.pid: name for name, meter in meters.items()})
        of_runs = sum_by_owner(gpus.memory, drivers)
        tasks_used = {name: replace(usage, gpu_memory_bytes=of_tasks.get(name)) for name, usage in usages.items()}
        return HostUsage(own, tasks_used, load, host.busy if host is not None else 0.0, of_runs)

    def _percent(self, now: HostTime) -> float | None:
        """Return the use of all processors since the newest sample that is old enough; None without one."""
        for at, earlier in reversed(self._host_times):
            if time.monotonic() - at >= settings.CPU_SAMPLE_MIN_SECONDS and now.total > earlier.total:
                return round(100.0 * (now.busy - earlier.busy) / (now.total - earlier.total), 1)
        return None


def sum_by_owner(memory: Mapping[int, int], owners: Mapping[int, str]) -> dict[str, int]:
    """Add up the GPU memory of processes by their owner: the task or run that a process is, or that it descends from.

    `memory` is in bytes, by pid; `owners` are names, by pid.
    """
    sums: Counter[str] = Counter()
    for pid, used in memory.items():
        owner = next((owners[each] for each in procfs.ancestors(pid) if each in owners), None)
        if owner is not None:
            sums[owner] += used
    return dict(sums)
