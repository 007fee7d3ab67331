"""Memory and processor time of a process."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class ResourceUsage:
    """A process's use at one moment.

    Attributes:
        rss_bytes: Resident memory.
        cpu_seconds: Processor time since it started.
        at: Monotonic seconds of the moment.
        age: Seconds since the process started.
    """

    rss_bytes: int
    cpu_seconds: float
    at: float
    age: float

    def percent_since(self, earlier: ResourceUsage | None) -> float:
        """Share of one core since an earlier sample, or since the process started, in percent."""
        used = self.cpu_seconds - (earlier.cpu_seconds if earlier else 0.0)
        elapsed = self.at - earlier.at if earlier else self.age
        return round(100.0 * used / elapsed, 1) if elapsed > 0 else 0.0


def read_usage(pid: int) -> ResourceUsage | None:
    """The use of a process now; None when it is gone, or when no descriptor is left to look with."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            age = time.time() - process.create_time()
            return ResourceUsage(process.memory_info().rss, times.user + times.system, time.monotonic(), age)
    except (psutil.Error, OSError):
        return None
