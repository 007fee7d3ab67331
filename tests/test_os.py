"""Mechanisms of Linux: the CPU quota of control groups, and memory in huge pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SCRIPTS, skip
from tfcluster.os.cpu_quota import read_cpu_quota


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("memberships", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/user/me\n", {"user/me/cpu.max": "max 100000\n", "user/cpu.max": "400000 100000\n"}, 4.0),
        ("0::/user/me\n", {"user/me/cpu.max": "50000 100000\n", "user/cpu.max": "400000 100000\n"}, 0.5),
        # The path on the machine, seen from a container.
        ("0::/docker/abc\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("5:memory:/\n1:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "9\n"}, None),
        ("1:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "250000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 2.5),
        ("1:cpu:/a\n", {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 5.0),
        ("1:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "5\n", "cpu,cpuacct/cpu.cfs_period_us": "2\n"}, 2.5),
        ("1:cpuset:/a\n", {"cpu/a/cpu.cfs_quota_us": "1\n", "cpu/a/cpu.cfs_period_us": "1\n"}, None),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
    ],
)
def test_the_smallest_quota_counts(
    memberships: str, files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    write(tmp_path / "groups", files)
    write(tmp_path, {"memberships": memberships})
    assert read_cpu_quota(tmp_path / "memberships", tmp_path / "groups") == quota


def test_a_kernel_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert read_cpu_quota(tmp_path / "none", tmp_path) is None


_KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))


def test_memory_is_in_huge_pages_and_keeps_its_contents() -> None:
    if _KERNEL < (6, 1):
        skip("Linux can do it from 6.1 on")
    words = [sys.executable, str(SCRIPTS / "huge_pages.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 60
