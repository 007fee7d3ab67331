"""What the NVIDIA Management Library (NVML) tells of a host's GPUs: their number, and how busy they are."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from tfcluster.core.status import GpuLoad
from tfcluster.processes import daemonize
from tfcluster.protocol.codec import encode

_NVML = "libnvidia-ml.so.1"
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    """NVML's nvmlUtilization_t: percent of the time in which the GPU computed, and in which its memory was used."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def count_gpus() -> int:
    """Return the number of GPUs that NVML reports, 0 without a driver."""
    with _open_nvml() as nvml:
        return 0 if nvml is None else _count(nvml)


def report_gpus(title: str, parent: int, agent: socket.socket) -> None:
    """Report the load of the GPUs each time when the agent asks by a byte, until it closes the connection.

    NVML may block for seconds, as when a driver wakes up or a GPU has failed: so the agent has this process for it.

    Args:
        title: The process title, which `ps` shows.
        parent: The agent's pid.
        agent: The child's end of a socket pair with the agent.
    """
    daemonize.detach(title, keep=[agent.fileno()], parent=parent)
    with _open_nvml() as nvml:
        while agent.recv(1 << 10):
            gpus = [] if nvml is None else [load for number in range(_count(nvml)) if (load := _load(nvml, number))]
            agent.sendall(encode({"gpus": [asdict(gpu) for gpu in gpus]}))


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
