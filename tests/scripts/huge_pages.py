"""Puts memory in huge pages, and prints how many MB of it are in them."""

import ctypes
import re
from pathlib import Path

from tfcluster.os.huge_pages import collapse_memory

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: also where the kernel uses huge pages by itself


def huge_mb() -> int:
    (kilobytes,) = re.findall("AnonHugePages: *([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text())
    return int(kilobytes) >> 10


memory = bytearray(64 << 20)
memory[::4096] = bytes(range(256)) * 64
ctypes.CDLL(None).prctl(41, 0, 0, 0, 0)
assert huge_mb() == 0
collapse_memory()
print(huge_mb())
assert memory[::4096] == bytes(range(256)) * 64
