"""The GPUs of this host, without TensorFlow and without touching them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_NVML = "libnvidia-ml.so.1"


def gpu_ids(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that tasks may be given, each as CUDA_VISIBLE_DEVICES names it.

    Those that the agent's own CUDA_VISIBLE_DEVICES allows, where that is set; else all that the driver has, by
    their number in PCI bus order; none where there is no driver.

    Args:
        environment: The agent's environment.
    """
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        names = [name.strip() for name in allowed.split(",")]
        # As CUDA reads it: what follows an invalid entry is not visible.
        end = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:end]
    return [str(number) for number in range(_driver_count())]


def _driver_count() -> int:
    """How many GPUs NVIDIA's management library counts."""
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
