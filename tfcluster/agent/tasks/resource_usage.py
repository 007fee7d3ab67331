"""Reads the resource usage of a process: memory (RSS) and processor time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class ResourceUsage:
    """A sample of a process's resource usage.

    Attributes:
        rss_bytes: Resident memory in bytes.
        cpu_seconds: Processor time since the process started, in seconds.
        at: Time of the sample, in monotonic seconds.
        age: Seconds since the process started.
    """

    rss_bytes: int
    cpu_seconds: float
    at: float
    age: float

    def percent_since(self, earlier: ResourceUsage | None) -> float:
        """Return the CPU usage in percent of one core since an earlier sample.

        Args:
            earlier: The earlier sample; None for the start of the process.
        """
        used = self.cpu_seconds - (earlier.cpu_seconds if earlier else 0.0)
        elapsed = self.at - earlier.at if earlier else self.age
        return round(100.0 * used / elapsed, 1) if elapsed > 0 else 0.0


def read_usage(pid: int) -> ResourceUsage | None:
    """Return the current usage of a process, or None if it has exited or no file descriptor is left to read it."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            age = time.time() - process.create_time()
            return ResourceUsage(process.memory_info().rss, times.user + times.system, time.monotonic(), age)
    except (psutil.Error, OSError):
        return None
