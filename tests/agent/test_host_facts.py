"""The GPUs of a host and its login accounts, from what the driver and the system's files say."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tfcluster.agent.preflight import gpu_ids, login_accounts
from tfcluster.processes import gpus


@pytest.mark.parametrize(
    ("allowed", "expected"),
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
def test_visible_devices_of_the_agent_limit_the_gpus(
    monkeypatch: pytest.MonkeyPatch, allowed: str, expected: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    monkeypatch.setattr(gpus, "_NVML", "of no use here")
    assert gpu_ids() == expected


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("nvml", "expected", "calls"),
    [
        (Nvml(3), ["0", "1", "2"], ["init", "count", "shutdown"]),
        (Nvml(0), [], ["init", "count", "shutdown"]),
        (Nvml(3, get=999), [], ["init", "count", "shutdown"]),
        (Nvml(3, init=9), [], ["init"]),
    ],
)
def test_the_gpus_are_counted_by_nvml_which_is_shut_down(
    monkeypatch: pytest.MonkeyPatch, nvml: Nvml, expected: list[str], calls: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    assert gpu_ids() == expected
    assert nvml.calls == calls


def line(name: str, uid: int, shell: str = "/bin/bash") -> str:
    return f"{name}:x:{uid}:{uid}:Some One,,,:/home/{name}:{shell}\n"


@pytest.mark.parametrize(
    ("passwd", "expected"),
    [
        ("", ("", [])),
        (line("root", 0) + line("me", 1000) + line("anna", 1001), ("me", ["anna"])),
        (line("me", 1000) + line("me-too", 1000), ("me", [])),
        (line("daemon", 999) + line("nobody", 65534) + line("late", 60001), ("", ["late"])),
        (line("locked", 1001, "/usr/sbin/nologin") + line("none", 1002, "/bin/false"), ("", [])),
        (line("odd", 1001, "/opt/shell") + line("default", 1002, ""), ("", ["odd", "default"])),
        ("+::::::\n# anna\n\nanna:x:1001\nben:x:many:1:::/bin/sh\n:x:1001:1:::/bin/sh\n", ("", [])),
        (line("ünïcode\ufffd", 1001), ("", ["ünïcode\ufffd"])),
    ],
)
def test_other_accounts_with_a_login_shell_are_listed(passwd: str, expected: tuple[str, list[str]]) -> None:
    assert login_accounts(passwd, uid=1000) == expected
