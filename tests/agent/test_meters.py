"""What psutil measures of processes and of the host, over which time, and that nothing fails without it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tfcluster.agent import meters
from tfcluster.agent.meters import ProcessMeter, host_memory, host_time


def test_a_process_and_its_host_are_measured() -> None:
    meter = ProcessMeter(os.getpid())
    before, host_before = meter.read(), host_time()
    assert before is not None
    assert host_before is not None
    while time.process_time() < before.cpu_seconds + 0.1:
        pass
    usage, host = meter.read(), host_time()
    assert usage is not None
    assert host is not None
    assert usage.rss_bytes > 10**6
    assert usage.cpu_seconds >= before.cpu_seconds + 0.05
    assert host.busy >= host_before.busy + 0.05
    assert host.total >= host.busy
    memory = host_memory()
    assert memory is not None
    assert 0 < memory[0] < memory[1] <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_process_that_has_exited_is_not_measured() -> None:
    with subprocess.Popen(["true"]) as process:
        meter = ProcessMeter(process.pid)
    assert meter.read() is None
    meter.sample()


@pytest.mark.parametrize(
    ("samples", "percent"),
    [
        ([], 10.0),  # since its start, 100 seconds ago
        ([(9.99, 99.99)], 10.0),  # too short ago to say anything
        ([(9.0, 98.0)], 50.0),
        ([(9.0, 96.0), (9.0, 98.0)], 50.0),
        ([(9.0, 98.0), (9.99, 99.99)], 50.0),
    ],
)
def test_cpu_usage_is_measured_over_a_minimum_interval(
    monkeypatch: pytest.MonkeyPatch, samples: list[tuple[float, float]], percent: float
) -> None:
    """The samples are the processor time, and when it is read."""
    used, clock = 0.0, 0.0
    process = SimpleNamespace(
        cpu_times=lambda: SimpleNamespace(user=used, system=0.0), memory_info=lambda: SimpleNamespace(rss=1)
    )
    monkeypatch.setattr(meters, "_load_psutil", lambda: SimpleNamespace(Process=lambda pid: process))
    monkeypatch.setattr(meters, "stat_fields", lambda pid: ["0"] * 20)
    monkeypatch.setattr("time.monotonic", lambda: clock)
    monkeypatch.setattr("time.clock_gettime", lambda kind: clock)
    meter = ProcessMeter(1)
    for used, clock in samples:  # noqa: B007 - the functions above read them
        meter.sample()
    used, clock = 10.0, 100.0
    usage = meter.read()
    assert usage is not None
    assert meter.percent(usage) == percent


def test_the_usage_of_a_young_process_is_that_since_its_start() -> None:
    """Psutil knows the start to a second only: the age would be up to a second too long."""
    program = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        began = time.monotonic()
        assert process.stdout is not None
        process.stdout.readline()
        meter = ProcessMeter(process.pid)
        usage = meter.read()
        assert usage is not None
        percent = meter.percent(usage)
        at_least = 100 * 0.38 / (time.monotonic() - began + 0.1)
        process.communicate(b"\n")
    assert percent is not None
    assert percent >= at_least


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'psutil'"), OSError(24, "Too many open files"), ImportError()]
)
def test_nothing_is_measured_without_psutil(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> None:
        raise error

    meter = ProcessMeter(os.getpid())
    with monkeypatch.context() as without:
        without.setattr(meters, "_import_psutil", fail)
        meters._load_psutil.cache_clear()
        meter.sample()
        problem = str(error) or "ImportError"
        assert (meter.read(), host_time(), host_memory(), meters.find_obstacle()) == (None, None, None, problem)
    assert meters.find_obstacle() == ""
    assert meter.read() is not None, "as soon as it is there"


def test_a_kernel_that_does_not_tell_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meter = ProcessMeter(os.getpid())
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert (host_time(), host_memory(), meter.read()) == (None, None, None)
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    (tmp_path / "stat").write_text("intr 1\n")
    assert (host_time(), host_memory()) == (None, None)
