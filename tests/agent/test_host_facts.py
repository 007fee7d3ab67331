"""The GPUs of a host and its login accounts, from what the driver and the system's files say."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tfcluster.agent.host_facts import gpu_ids, login_accounts
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


SHELLS = "# /etc/shells: valid login shells\n/bin/sh\n/bin/bash\n/usr/bin/tmux\n"
LIMITS = "# the range\nUID_MIN\t\t\t 1000\nUID_MAX\t\t\t60000\n#UID_MAX 5\nSYS_UID_MIN 100\n"


def line(name: str, uid: int, shell: str = "/bin/bash") -> str:
    return f"{name}:x:{uid}:{uid}:Some One,,,:/home/{name}:{shell}\n"


@pytest.mark.parametrize(
    ("passwd", "login_defs", "shells", "expected"),
    [
        ("", LIMITS, SHELLS, []),
        (line("root", 0) + line("me", 1000) + line("anna", 1001), LIMITS, SHELLS, ["anna"]),
        (line("anna", 1001) + line("ben", 1002, "/bin/sh"), LIMITS, SHELLS, ["anna", "ben"]),
        (line("me-too", 1000), LIMITS, SHELLS, []),
        (line("daemon", 999) + line("nobody", 65534), "", "", []),
        (line("late", 60001), LIMITS, SHELLS, []),
        (line("late", 60001), "", SHELLS, ["late"]),
        (line("early", 500), "UID_MIN 500\n", SHELLS, ["early"]),
        (line("early", 500), "UID_MIN many\nUID_MAX\n", SHELLS, []),
        (line("locked", 1001, "/usr/sbin/nologin") + line("none", 1002, "/bin/false"), LIMITS, SHELLS, []),
        (line("sync", 1001, "/bin/sync"), LIMITS, "", []),
        (line("odd", 1001, "/opt/shell"), LIMITS, SHELLS, []),
        (line("odd", 1001, "/opt/shell"), LIMITS, "", ["odd"]),
        (line("odd", 1001, "/opt/shell"), LIMITS, "# none yet\n", ["odd"]),
        (line("listed", 1001, "/sbin/nologin"), LIMITS, f"{SHELLS}/sbin/nologin\n", []),
        (line("default", 1001, ""), LIMITS, SHELLS, ["default"]),
        ("+::::::\n# anna\n\nanna:x:1001\nben:x:many:1:::/bin/sh\n:x:1001:1:::/bin/sh\n", LIMITS, SHELLS, []),
        (line("ünïcode\ufffd", 1001), LIMITS, SHELLS, ["ünïcode\ufffd"]),
    ],
)
def test_other_accounts_with_a_login_shell_are_listed(
    passwd: str, login_defs: str, shells: str, expected: list[str]
) -> None:
    assert login_accounts(passwd, login_defs, shells, uid=1000) == expected
