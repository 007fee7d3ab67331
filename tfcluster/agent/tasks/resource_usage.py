"""Samples what the kernel counts for a process: memory, processor time, and kills by the out-of-memory (OOM) killer.

The kernel does not report which process the OOM killer ended. It counts the kills per memory control group (cgroup) and
per host."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfcluster import settings
from tfcluster.os import procfs

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ResourceUsage:
    """A sample of a process's resource usage."""

    rss_bytes: int  # resident memory
    cpu_seconds: float  # processor time since the process started
    at: float  # time of the sample, in monotonic seconds
    age: float  # seconds since the process started

    def percent_since(self, earlier: ResourceUsage | None) -> float:
        """Return the CPU usage in percent of one core since an earlier sample.

        Without an earlier sample, this is the usage since the start of the process.
        """
        used = self.cpu_seconds - (earlier.cpu_seconds if earlier else 0.0)
        elapsed = self.at - earlier.at if earlier else self.age
        return round(100.0 * used / elapsed, 1) if elapsed > 0 else 0.0


def read_usage(pid: int) -> ResourceUsage | None:
    """Return the current usage of a process, or None if it has exited or no file descriptor is left to read it.

    One file is read, in some 20 microseconds, for each task at each health check.
    """
    try:
        fields = procfs.stat_fields(pid)
    except OSError:
        return None
    ticks = int(fields[procfs.USER_TICKS]) + int(fields[procfs.SYSTEM_TICKS])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[procfs.START_TICKS]) / procfs.TICKS
    rss_bytes = int(fields[procfs.RSS_PAGES]) * _PAGE_BYTES
    return ResourceUsage(rss_bytes, ticks / procfs.TICKS, time.monotonic(), age)


class OomDetector:
    """Samples the OOM counters that concern one process, from the start of the process on.

    `now` is in monotonic seconds, here and in `sample`.
    """

    def __init__(self, pid: int, now: float, proc: Path = _PROC, groups: Path = _GROUPS) -> None:
        # The group must be found now: after the process has exited, the kernel no longer shows it.
        self._group = _find_counter_of_group(proc / str(pid) / "cgroup", groups)
        self._host = proc / "vmstat"
        self._samples = deque([self._read()], maxlen=settings.OOM_SAMPLES)
        self._sampled = now

    def sample(self, now: float) -> None:
        """Sample the counters if the sampling interval has passed."""
        if now - self._sampled >= settings.OOM_SAMPLE_INTERVAL_SECONDS:
            self._samples.append(self._read())
            self._sampled = now

    def describe(self) -> str:
        """Describe the OOM kills that may explain the process's end by a SIGKILL that this agent did not send.

        Return text to append to the reason of the process's end; empty if there was no OOM kill.
        """
        (group, host), (group_now, host_now) = self._samples[0], self._read()
        if group is not None and group_now is not None:  # it counts the kills for any lack of memory
            return " (out of memory)" if group_now > group else ""
        if host is not None and host_now is not None and host_now > host:
            return ", while the kernel's out-of-memory (OOM) killer killed processes on this host"
        return ""

    def _read(self) -> tuple[int | None, int | None]:
        """Return how many processes were ended so far, in the group and on the host; None for what is not counted."""
        return _read_kills(self._group), _read_kills(self._host)


def _find_counter_of_group(memberships: Path, groups: Path) -> Path | None:
    """Return the file that counts the OOM kills in a process's memory control group, or None if there is none.

    `memberships` is /proc/PID/cgroup: a line `NUMBER:CONTROLLERS:GROUP` for each hierarchy.
    """
    try:
        lines = memberships.read_text().splitlines()
    except OSError:  # it has exited
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            counter = groups / "memory" / group.lstrip("/") / "memory.oom_control"
        elif not controllers:  # cgroup v2 has one hierarchy for all controllers
            counter = groups / group.lstrip("/") / "memory.events"
        else:
            continue
        if counter.exists():
            return counter
    return None


def _read_kills(counter: Path | None) -> int | None:
    """Return the number of kills in memory.events, memory.oom_control or /proc/vmstat; None if it is not known.

    All three have a line `oom_kill N`. The file of a group is removed with it, or may not be readable for this user.
    """
    with suppress(OSError):
        for line in counter.read_text().splitlines() if counter is not None else ():
            key, _, count = line.partition(" ")
            if key == "oom_kill":
                return int(count)
    return None
