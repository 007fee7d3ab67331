"""What the agent measures of its host and its tasks, with files and a GPU library of the test."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.agent import usage
from tfcluster.agent.usage import GpuReport, GpuReporter, sum_by_owner
from tfcluster.core.status import GpuLoad
from tfcluster.os import procfs
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes import gpus

PROCESS = ProcessHandle(1, 1)


# How the second GPU answers who uses it: there is too little room, as there are more processes than one expects.
TOO_SMALL = 7
ME = os.getpid()


class Nvml:
    """In place of NVIDIA's management library: two GPUs; the second does not tell how busy it is.

    The first is used by this process twice, by one whose memory is not available, and by ones that have no device open:
    these have pids of another namespace. The second is used by this process, and has more of them than there is room.
    """

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, device: Any) -> int:
        device._obj.value = number + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.used, memory._obj.total = 1 << 30, 80 << 30
        return 0

    def nvmlDeviceGetName(self, device: ctypes.c_void_p, name: Any, size: int) -> int:
        name.value = f"GPU of handle {device.value}".encode()
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: ctypes.c_void_p, busy: Any) -> int:
        busy._obj.gpu = 42
        return 0 if device.value == 1 else 3

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: ctypes.c_void_p, room: Any, processes: Any) -> int:
        used = [(ME, 5), (ME, 2), (ME, 2**64 - 1), (1, 1000), (2**22 + 1, 1000)]
        if device.value == 2:
            used = [(ME, 100), *[(1, 1)] * 99]
        had, room._obj.value = room._obj.value, len(used)
        if had < len(used):
            return TOO_SMALL
        for number, (pid, memory) in enumerate(used):
            processes[number].pid, processes[number].memory = pid, memory
        return 0


async def test_gpus_are_read_by_a_process_that_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **more: Nvml() if "nvidia" in str(name) else LIBC(name, **more))
    monkeypatch.setattr(usage, "_NVIDIA_DEVICE", Path("/dev/null"))
    monkeypatch.setattr(gpus, "_DEVICES", "/dev/full")

    def fail() -> None:
        raise BlockingIOError("no process is left")

    reporter = GpuReporter("GPU reporter")
    with monkeypatch.context() as patch:
        patch.setattr(usage, "_NVIDIA_DEVICE", Path("/dev/none"))
        assert await reporter.read(1.0) == GpuReport(), "without a driver"
        assert reporter.process is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fail)
        assert await reporter.read(60.0) == GpuReport()
    with open("/dev/full"):  # in place of a device of the driver
        report = await reporter.read(60.0)
        assert await reporter.read(60.0) == report
    assert reporter.process is not None
    monkeypatch.setattr(settings, "GPU_REPORT_IDLE_SECONDS", 0.0)
    await reporter.read(60.0)
    while reporter.process is not None:
        await asyncio.sleep(0.01)
    assert report.memory == {ME: 107}
    assert report.gpus == (
        GpuLoad("0", "GPU of handle 1", 42.0, 1 << 30, 80 << 30),
        GpuLoad("1", "GPU of handle 2", None, 1 << 30, 80 << 30),
    )


LIBC = ctypes.CDLL


@pytest.mark.parametrize("name", ["of a driver that is too old", "that is denied"])
def test_a_driver_that_does_not_tell_who_uses_a_gpu_is_no_failure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = "nvmlDeviceGetComputeRunningProcesses_v3"
    if name == "that is denied":
        monkeypatch.setattr(Nvml, function, lambda *_: 4)  # NVML_ERROR_NO_PERMISSION
    else:
        monkeypatch.delattr(Nvml, function)
    nvml: Any = Nvml()
    assert gpus._process_memory(nvml, 0) == {}


def test_the_gpu_memory_of_descendants_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(procfs, "ROOT", str(tmp_path))
    for pid, parent in [(1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (30, 31), (31, 30)]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) name ) S {parent} 1 1 0 -1\n")
    memory = {12: 5, 11: 100, 10: 1000, 20: 7, 30: 8, 99: 9}
    assert sum_by_owner(memory, {11: "worker:0"}) == {"worker:0": 105}
    assert sum_by_owner(memory, {10: "worker:0", 12: "worker:1"}) == {"worker:0": 1100, "worker:1": 5}
    assert sum_by_owner({}, {10: "worker:0"}) == {}
