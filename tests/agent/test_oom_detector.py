"""Exits by the kernel's out-of-memory killer are recognised by its counters; one of them is real."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_groups import memory_group
from tfcluster.os.procfs import OomDetector

GROUP = "app.slice/my task"
VERSION_2 = f"0::/{GROUP}\n"
VERSION_1 = f"9:name=systemd:/else\n4:memory:/{GROUP}\n3:cpuset:/\n0::/\n"
_ENDED_BY_KERNEL = ", while the kernel's out-of-memory (OOM) killer killed processes on this host"
MIXED = f"4:hugetlb,memory:/{GROUP}\n0::/else\n"


class Kernel:
    """The files in which the kernel says what is asked of it, for process 17."""

    def __init__(self, folder: Path, memberships: str) -> None:
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        (self.proc / "17").mkdir(parents=True)
        (self.proc / "17" / "cgroup").write_text(memberships)

    def counts(self, file: str, count: int) -> None:
        (self.groups / file).parent.mkdir(parents=True, exist_ok=True)
        (self.groups / file).write_text(f"low 0\noom 99\noom_kill {count}\noom_group_kill 50\n")

    def counts_on_host(self, count: int) -> None:
        (self.proc / "vmstat").write_text(f"nr_free_pages 1000\noom_kill {count}\ndrop_slab 4\n")

    def watch(self) -> OomDetector:
        return OomDetector(17, 100.0, self.proc, self.groups)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ((0, 7), (0, 7), ""),
        ((0, 7), (1, 8), " (out of memory)"),
        ((2, None), (4, None), " (out of memory)"),
        ((0, 7), (0, 8), ""),
        ((None, 7), (None, 8), _ENDED_BY_KERNEL),
        ((None, 7), (3, 7), ""),
        ((3, None), (None, 7), ""),
        ((None, None), (None, None), ""),
    ],
)
def test_an_oom_kill_is_described_by_the_counter_that_grew(
    tmp_path: Path, before: tuple[int | None, int | None], after: tuple[int | None, int | None], named: str
) -> None:
    """The counters are that of the group and that of the host; None stands for one that the kernel does not have."""
    kernel = Kernel(tmp_path, VERSION_2)
    group = kernel.groups / GROUP / "memory.events"
    group.parent.mkdir(parents=True)
    group.touch()  # it stays known, and has no count yet

    def tell(of_group: int | None, of_host: int | None) -> None:
        if of_group is None:
            group.write_text("low 0\n")
        else:
            kernel.counts(f"{GROUP}/memory.events", of_group)
        if of_host is None:
            (kernel.proc / "vmstat").unlink(missing_ok=True)
        else:
            kernel.counts_on_host(of_host)

    tell(*before)
    watch = kernel.watch()
    tell(*after)
    assert watch.describe() == named


@pytest.mark.parametrize(
    ("memberships", "file"),
    [
        (VERSION_2, f"{GROUP}/memory.events"),
        (VERSION_1, f"memory/{GROUP}/memory.oom_control"),
        (MIXED, f"memory/{GROUP}/memory.oom_control"),
    ],
)
def test_the_group_of_the_process_is_found_and_stays_known_after_its_end(
    tmp_path: Path, memberships: str, file: str
) -> None:
    kernel = Kernel(tmp_path, memberships)
    kernel.counts(file, 3)
    kernel.counts_on_host(5)
    watch = kernel.watch()
    assert watch.describe() == ""
    (kernel.proc / "17" / "cgroup").unlink()
    kernel.counts(file, 4)
    kernel.counts_on_host(6)
    assert watch.describe() == " (out of memory)"


@pytest.mark.parametrize("memberships", ["", "0::/\n", VERSION_1, VERSION_2])
def test_without_a_counter_for_the_group_that_of_the_host_is_a_hint(tmp_path: Path, memberships: str) -> None:
    kernel = Kernel(tmp_path, memberships)
    assert kernel.watch().describe() == ""
    kernel.counts_on_host(5)
    watch = kernel.watch()
    kernel.counts_on_host(6)
    assert watch.describe() == _ENDED_BY_KERNEL


def test_an_old_oom_kill_is_not_attributed(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, VERSION_2)
    kernel.counts(f"{GROUP}/memory.events", 0)
    watch = kernel.watch()
    kernel.counts(f"{GROUP}/memory.events", 1)
    for second in range(2, 40, 2):
        watch.sample(100.0 + second)
        assert watch.describe() == " (out of memory)"
    watch.sample(140.0)
    assert watch.describe() == ""


def test_a_real_oom_kill_is_distinguished_from_a_kill() -> None:
    with memory_group() as group:
        hungry = subprocess.Popen(
            [sys.executable, "-c", "input(); data = [bytearray(1 << 20) for _ in range(1024)]"],
            stdin=subprocess.PIPE,
            preexec_fn=group.join,
        )
        patient = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, preexec_fn=group.join)
        watches = [OomDetector(process.pid, 0.0) for process in (patient, hungry)]
        patient.kill()
        patient.communicate()
        assert watches[0].describe() != " (out of memory)"
        group.limit(64 << 20)
        hungry.communicate(b"\n")
        assert hungry.returncode == -signal.SIGKILL
        assert watches[1].describe() == " (out of memory)"
