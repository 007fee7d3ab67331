"""The memory of a process that forks others is moved into huge pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Sandbox, skip

_KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))
_PROGRAM = """
import re
import ctypes
from tfcluster.os.huge_pages import collapse_memory
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: also where the kernel uses huge pages by itself
def huge_mb():
    return int(re.search("AnonHugePages: *([0-9]+) kB", open("/proc/self/smaps_rollup").read())[1]) >> 10
memory = bytearray(64 << 20)
memory[::4096] = bytes(range(256)) * 64
ctypes.CDLL(None).prctl(41, 0, 0, 0, 0)
assert huge_mb() == 0
collapse_memory()
print(huge_mb())
assert memory[::4096] == bytes(range(256)) * 64
"""


@pytest.fixture(autouse=True)
def new_kernel() -> None:
    if _KERNEL < (6, 1):
        skip("Linux can do it from 6.1 on")


def test_memory_is_in_huge_pages_and_keeps_its_contents() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 60


def test_the_fork_server_has_most_of_its_memory_in_huge_pages(demo: Sandbox) -> None:
    demo("run", "pi", "--samples", "1000")
    (pid,) = [pid for pid, title in demo.processes().items() if title.endswith(" fork server")]
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
    assert int(sizes["AnonHugePages"]) > int(sizes["Anonymous"]) / 4  # those that were written to since are split
