"""Whether the kernel's out-of-memory killer ended a process: its counters before and after the end.

The kernel tells nobody whom it killed. It counts, for the memory control group that the victim was in and for the host.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
# An end is compared with the oldest of so many samples, taken so many seconds apart: with half a minute ago, since
# when even a process of hundreds of gigabytes has ended. An older kill was that of something else in the group.
_SAMPLES = 4
_APART = 10.0


@dataclass(frozen=True)
class OomCounters:
    """How many processes the out-of-memory killer has ended so far; None where the kernel does not say.

    Attributes:
        group: In one memory control group.
        host: On the whole host.
    """

    group: int | None
    host: int | None

    def until(self, later: OomCounters) -> str:
        """What to add to the reason of an end by SIGKILL between these counts and later ones; empty for nothing."""
        if _grew(self.group, later.group):
            return " (out of memory)"
        if _grew(self.host, later.host):
            return ", while the kernel's out-of-memory killer struck on this host"
        return ""


class OomDetector:
    """The counters that concern one process, sampled from its start on.

    Args:
        pid: The process.
        now: Monotonic seconds.
        proc: Where the kernel shows processes.
        groups: Where the control groups are mounted.
    """

    def __init__(self, pid: int, now: float, proc: Path = _PROC, groups: Path = _GROUPS) -> None:
        # Already here: when the process has ended, the kernel no longer says in which group it was.
        self._group = _counter_of_group(_text(proc / str(pid) / "cgroup"), groups)
        self._host = proc / "vmstat"
        self._samples = deque([self._read()], maxlen=_SAMPLES)
        self._sampled = now

    def sample(self, now: float) -> None:
        """Remember the counts as they are, if it is time to; `now` in monotonic seconds."""
        if now - self._sampled >= _APART:
            self._samples.append(self._read())
            self._sampled = now

    def named(self) -> str:
        """What to add to the reason of its end by a SIGKILL that nobody here sent; empty for nothing."""
        return self._samples[0].until(self._read())

    def _read(self) -> OomCounters:
        return OomCounters(_count(_text(self._group)) if self._group else None, _count(_text(self._host)))


def _counter_of_group(memberships: str, groups: Path) -> Path | None:
    """The file that counts the kills in a process's memory control group; None where there is none.

    Args:
        memberships: /proc/PID/cgroup; a line for each hierarchy, `NUMBER:CONTROLLERS:GROUP`.
        groups: Where the hierarchies are mounted.
    """
    for line in memberships.splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            counter = groups / "memory" / group.lstrip("/") / "memory.oom_control"
        elif not controllers:  # version 2, which has one hierarchy for all controllers
            counter = groups / group.lstrip("/") / "memory.events"
        else:
            continue
        if counter.exists():
            return counter
    return None


def _count(text: str) -> int | None:
    """The count of kills in memory.events, memory.oom_control or /proc/vmstat: all have a line `oom_kill N`."""
    for line in text.splitlines():
        key, _, count = line.partition(" ")
        if key == "oom_kill":
            return int(count)
    return None


def _grew(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def _text(path: Path) -> str:
    with suppress(OSError):  # gone with the process, or not shown to this user
        return path.read_text()
    return ""
