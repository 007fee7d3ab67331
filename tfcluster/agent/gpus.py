"""Count the GPUs of this host through NVML: TensorFlow is not loaded, and no GPU is initialized."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_NVML = "libnvidia-ml.so.1"


def gpu_ids(environment: Mapping[str, str] = os.environ) -> list[str]:
    """List the GPUs that tasks may use.

    If CUDA_VISIBLE_DEVICES is set in the agent's environment, only the GPUs that it allows are listed. Otherwise all
    GPUs of the driver are listed by their index in PCI bus order.

    Args:
        environment: The agent's environment.

    Returns:
        The GPUs, each in the notation of CUDA_VISIBLE_DEVICES; empty if there is no driver.
    """
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        names = [name.strip() for name in allowed.split(",")]
        # CUDA ignores an invalid entry and all entries after it.
        end = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:end]
    return [str(number) for number in range(_driver_count())]


def _driver_count() -> int:
    """Return the number of GPUs that the NVIDIA Management Library (NVML) reports, 0 without a driver."""
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return 0
    if nvml.nvmlInit_v2() != 0:
        return 0
    count = ctypes.c_uint(0)
    try:
        return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0
    finally:
        nvml.nvmlShutdown()
