"""Measures processes and this host with psutil.

On a host that lacks psutil nothing is measured: all values are None.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tfcluster import settings
from tfcluster.core.usage import ProcessUsage
from tfcluster.os.procfs import START_TICKS, TICKS, stat_fields
from tfcluster.records import record_class

R = TypeVar("R")


def _import_psutil() -> Any:
    import psutil

    return psutil


@functools.cache
def _load_psutil() -> Any:
    """Import psutil, which takes some 10 ms, for the first measurement; return None on a host that lacks it."""
    try:
        return _import_psutil()
    except ImportError:
        return None


def find_obstacle() -> str:
    """Return why psutil cannot be used, such as `No module named 'psutil'`; empty if it can."""
    importlib.invalidate_caches()  # it may have just been installed
    _load_psutil.cache_clear()
    try:
        _import_psutil()
    except Exception as error:  # also such as a library that does not fit this host
        return str(error) or type(error).__name__
    return ""


def _measure(read: Callable[[Any], R]) -> R | None:
    """Return what a function reads with psutil; None if it cannot be read.

    This host may lack psutil, a process may have exited, there may be no file descriptor left to read a file of /proc,
    or this kernel may not have what psutil expects there.
    """
    try:
        psutil = _load_psutil()
        return None if psutil is None else read(psutil)
    except Exception:
        return None


@dataclass
class ProcessMeter:
    """Measures a process; samples of its CPU time, at intervals, show how busy it is."""

    pid: int
    _process: Any = None  # psutil's object; made once, as that takes as long as a sample
    _samples: list[tuple[float, float]] = field(default_factory=list)  # the latest two: when, and the CPU time

    def read(self) -> ProcessUsage | None:
        """Return what the process uses."""
        return _measure(lambda psutil: ProcessUsage(self._seconds(psutil), self._of(psutil).memory_info().rss))

    def sample(self) -> None:
        """Sample the CPU time, to compare later values with it."""
        if (seconds := _measure(self._seconds)) is not None:
            self._samples = [*self._samples[-1:], (time.monotonic(), seconds)]

    def percent(self, now: ProcessUsage) -> float | None:
        """Return the CPU usage in percent of one core since the newest sample that is old enough, or else the start."""
        clock = time.monotonic()
        for at, seconds in reversed(self._samples):
            if clock - at >= settings.CPU_SAMPLE_MIN_SECONDS:
                return _percent(now.cpu_seconds - seconds, clock - at)
        try:
            ticks = int(stat_fields(self.pid)[START_TICKS])
        except OSError:
            return None
        # psutil has the time since 1970, which it only knows to a second, and which changes with the clock.
        return _percent(now.cpu_seconds, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / TICKS)

    def _of(self, psutil: Any) -> Any:
        self._process = self._process or psutil.Process(self.pid)
        return self._process

    def _seconds(self, psutil: Any) -> float:
        times = self._of(psutil).cpu_times()
        return float(times.user + times.system)


@record_class(frozen=True)
class HostTime:
    """The CPU time of a host, in seconds, summed over all cores since boot."""

    busy: float
    total: float


def host_time() -> HostTime | None:
    """Return the CPU time of this host."""

    def read(psutil: Any) -> HostTime:
        times = psutil.cpu_times()
        total = sum(times) - times.guest - times.guest_nice  # those of guests are in user and nice
        return HostTime(total - times.idle - times.iowait, total)

    return _measure(read)


def host_memory() -> tuple[int, int] | None:
    """Return the unavailable and the total memory of this host, in bytes."""

    def read(psutil: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.total - memory.available, memory.total

    return _measure(read)


def _percent(used: float, elapsed: float) -> float:
    return round(100.0 * used / elapsed, 1) if elapsed > 0 else 0.0
