"""Attribute GPU memory to tasks and runs: a process that computes on a GPU belongs to the one that it descends from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")


def sum_by_owner(memory: Mapping[int, int], owners: Mapping[int, str], proc: Path = _PROC) -> dict[str, int]:
    """Add up the GPU memory of processes by their owner: the first of their ancestors that is one, or they themselves.

    `memory` is in bytes, by pid; `owners` are names, by pid.
    """
    sums: Counter[str] = Counter()
    for pid, used in memory.items():
        owner = _find_owner(pid, owners, proc)
        if owner is not None:
            sums[owner] += used
    return dict(sums)


def _find_owner(pid: int, owners: Mapping[int, str], proc: Path) -> str | None:
    seen: set[int] = set()  # a pid that is used again could close a circle
    while pid not in owners:
        seen.add(pid)
        pid = _parent_of(pid, proc)
        if pid == 0 or pid in seen:
            return None
    return owners[pid]


def _parent_of(pid: int, proc: Path) -> int:
    """Return the pid of a process's parent; 0 if there is none in this pid namespace, or the process has exited."""
    try:
        return int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
