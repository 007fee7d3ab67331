"""The GPUs of the host: those that CUDA_VISIBLE_DEVICES leaves, else those that the driver counts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tfcluster.agent import gpus
from tfcluster.agent.gpus import gpu_ids


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        ("0,1", ["0", "1"]),
        ("3, GPU-5f ,0", ["3", "GPU-5f", "0"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("0,,1", ["0"]),
        ("NoDevFiles", ["NoDevFiles"]),
    ],
)
def test_what_the_agent_may_see_is_what_its_tasks_may_get(
    monkeypatch: pytest.MonkeyPatch, allowed: str, found: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    monkeypatch.setattr(gpus, "_NVML", "of no use here")
    assert gpu_ids() == found


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_NVML", "libtfcluster-has-no-such-library.so.1")
    assert gpu_ids() == []


class Nvml:
    """In place of NVIDIA's management library."""

    def __init__(self, count: int, init: int = 0, get: int = 0) -> None:
        self.calls: list[str] = []
        self.nvmlInit_v2 = self._answering("init", init)
        self.nvmlShutdown = self._answering("shutdown", 0)
        self._get, self._count = self._answering("count", get), count

    def _answering(self, name: str, code: int) -> Callable[[], int]:
        def call() -> int:
            self.calls.append(name)
            return code

        return call

    def nvmlDeviceGetCount_v2(self, pointer: object) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint))[0] = self._count  # type: ignore[arg-type]
        return self._get()


@pytest.mark.parametrize(
    ("nvml", "found", "calls"),
    [
        (Nvml(3), ["0", "1", "2"], ["init", "count", "shutdown"]),
        (Nvml(0), [], ["init", "count", "shutdown"]),
        (Nvml(3, get=999), [], ["init", "count", "shutdown"]),
        (Nvml(3, init=9), [], ["init"]),
    ],
)
def test_the_drivers_library_counts_and_is_given_back(
    monkeypatch: pytest.MonkeyPatch, nvml: Nvml, found: list[str], calls: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    assert gpu_ids() == found
    assert nvml.calls == calls
