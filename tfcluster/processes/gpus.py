"""What the NVIDIA Management Library (NVML) tells of a host's GPUs: their number, their load, and who uses them."""

from __future__ import annotations

import ctypes
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from tfcluster.core.status import GpuLoad
from tfcluster.os import procfs
from tfcluster.protocol.codec import encode

_NVML = "libnvidia-ml.so.1"
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, and NVML_DEVICE_UUID_V2_BUFFER_SIZE
_INSUFFICIENT_SIZE = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
_DEVICES = "/dev/nvidia"  # how the paths of the driver's devices begin
_PROCESSES = 64  # for how many processes of a GPU there is room at first


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    """NVML's nvmlUtilization_t: percent of the time in which the GPU computed, and in which its memory was used."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    """NVML's nvmlProcessInfo_t, version 2: a process that computes on a GPU."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def list_gpus() -> list[tuple[str, str]]:
    """Return the index and the UUID of each GPU that NVML reports, none without a driver; an unknown UUID is empty."""
    with _open_nvml() as nvml:
        return [] if nvml is None else [(str(number), _uuid(nvml, number)) for number in range(_count(nvml))]


def report_gpus(agent: socket.socket) -> None:
    """Report the load of the GPUs and the memory of each process on them, until the agent closes the connection.

    The agent asks by sending a JSON line.

    NVML may block for seconds, as when a driver wakes up or a GPU has failed: so the agent has this process for it.
    """
    with _open_nvml() as nvml:
        while agent.recv(1 << 10):
            numbers = range(0 if nvml is None else _count(nvml))
            gpus = [load for number in numbers if nvml is not None and (load := _load(nvml, number))]
            memory: Counter[int] = Counter()
            for number in numbers:
                if nvml is not None:
                    memory.update(_process_memory(nvml, number))
            agent.sendall(encode({"gpus": [asdict(gpu) for gpu in gpus], "memory": list(memory.items())}))


@contextmanager
def _open_nvml() -> Iterator[ctypes.CDLL | None]:
    """Open the library until the context is left; None if there is none, or no driver."""
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        yield None
        return
    if nvml.nvmlInit_v2() != 0:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _count(nvml: ctypes.CDLL) -> int:
    count = ctypes.c_uint(0)
    return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0


def _uuid(nvml: ctypes.CDLL, number: int) -> str:
    device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) == 0:
        nvml.nvmlDeviceGetUUID(device, uuid, _NAME_BYTES)
    return uuid.value.decode(errors="replace")


def _load(nvml: ctypes.CDLL, number: int) -> GpuLoad | None:
    """Return the load of a GPU; None if it has failed."""
    device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    memory, busy = _Memory(), _Utilization()
    if (
        nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) != 0
        or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0
    ):
        return None
    nvml.nvmlDeviceGetName(device, name, _NAME_BYTES)
    # A GPU that is divided into several (MIG) does not tell.
    has_utilization = nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(busy)) == 0
    percent = float(busy.gpu) if has_utilization else None
    return GpuLoad(str(number), name.value.decode(errors="replace"), percent, memory.used, memory.total)


def _process_memory(nvml: ctypes.CDLL, number: int) -> dict[int, int]:
    """Return the memory in bytes that processes use on a GPU, by pid, as far as the driver tells.

    In a container the driver may tell the pids of another pid namespace, which other processes have here: only
    processes that this user may inspect, and that have a device of the driver open, are believed.
    """
    device = ctypes.c_void_p()
    list_processes = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)  # since version 510 of the driver
    if list_processes is None or nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) != 0:
        return {}
    room = ctypes.c_uint(_PROCESSES)
    processes = (_Process * room.value)()
    if (status := list_processes(device, ctypes.byref(room), processes)) == _INSUFFICIENT_SIZE:
        room.value *= 2  # there may be more meanwhile
        processes = (_Process * room.value)()
        status = list_processes(device, ctypes.byref(room), processes)
    if status != 0:
        return {}
    used: Counter[int] = Counter()
    for process in processes[: room.value]:
        if process.memory != _NOT_AVAILABLE and _has_device(process.pid):
            used[process.pid] += process.memory
    return used


def _has_device(pid: int) -> bool:
    """Return whether a process has a device of the driver open; False if it has exited or is of another user."""
    return any(file.startswith(_DEVICES) for file in procfs.open_files(pid))
