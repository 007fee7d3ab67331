"""Which members of a group do not compute: they only served one that has exited."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tfcluster import settings
from tfcluster.os import procfs


@dataclass
class _Watched:
    """A member that is watched: its pid, and the processor time that it had used when it was measured last."""

    pid: int
    used: float


class IdleMembers:
    """Watches members for those that do not compute over a period."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._ended: set[int] = set()
        self._seconds = 0.0
        self._due_at = 0.0

    def watch(self, pids: Mapping[int, int], seconds: float) -> None:
        """Watch members from now on.

        `pids` has the pids of the members, by rank. A period takes `seconds`.
        """
        self._seconds, self._due_at = seconds, time.monotonic() + seconds
        self._watched = {rank: _Watched(pid, _processor_seconds(pid)) for rank, pid in pids.items()}
        self._ended.clear()

    def seconds_left(self) -> float:
        """Return the seconds until `take_idle` may have a result; infinite if no member is watched."""
        return max(0.0, self._due_at - time.monotonic()) if self._watched else float("inf")

    def take_idle(self) -> list[int]:
        """Return the ranks of the members that have not computed over the period that has just ended, to end them."""
        if self.seconds_left() > 0:
            return []
        self._due_at = time.monotonic() + self._seconds
        idle = []
        for rank, each in list(self._watched.items()):
            before, each.used = each.used, _processor_seconds(each.pid)
            if each.used - before < settings.GROUP_IDLE_CPU_PERCENT / 100 * self._seconds:
                idle.append(rank)
                del self._watched[rank]
        self._ended.update(idle)
        return idle

    def forget(self, rank: int) -> bool:
        """Watch a member no more, as it has exited; return whether it was ended because it did not compute."""
        self._watched.pop(rank, None)
        return rank in self._ended


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a member: its process group, which has the processes of a data loader, too."""
    ticks = 0
    for each in procfs.pids():
        try:
            fields = procfs.stat_fields(each)
        except OSError:  # it has exited, and is counted by its parent from then on
            continue
        if int(fields[procfs.GROUP]) == pid:
            ticks += sum(map(int, fields[procfs.USER_TICKS : procfs.WAITED_SYSTEM_TICKS + 1]))
    return ticks / procfs.TICKS
