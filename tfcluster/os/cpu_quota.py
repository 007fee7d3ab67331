"""How much CPU time the control groups (cgroups) of this process allow, which the number of its cores does not show."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_MEMBERSHIPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def read_cpu_quota(memberships: Path = _MEMBERSHIPS, groups: Path = _GROUPS) -> float | None:
    """Return how many cores this process may keep busy, by the smallest quota of its groups; None if none has one.

    `memberships` has a line `NUMBER:CONTROLLERS:GROUP` for each hierarchy. A container can see its own group alone, at
    the root of the hierarchy, while GROUP is its path on the machine: folders that do not exist are skipped.
    """
    quotas: list[float] = []
    with suppress(OSError):
        for line in memberships.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            names = controllers.split(",")
            if not controllers:  # version 2 has one hierarchy for all controllers
                quotas += _quotas(groups, group)
            elif "cpu" in names:
                quotas += _quotas(groups / "cpu", group) or _quotas(groups / controllers, group)
    return min(quotas, default=None)


def _quotas(root: Path, group: str) -> list[float]:
    """Return the quotas of a group and of all groups that it is in."""
    folder = root / group.lstrip("/")
    parents = [each for each in (folder, *folder.parents) if each.is_relative_to(root)]
    return [quota for each in parents if (quota := _quota(each)) is not None]


def _quota(folder: Path) -> float | None:
    with suppress(OSError, ValueError):  # ValueError: `max`, which is no quota
        limit, period = (folder / "cpu.max").read_text().split()
        return int(limit) / int(period)
    with suppress(OSError, ValueError):
        microseconds = int((folder / "cpu.cfs_quota_us").read_text())
        if microseconds > 0:  # else -1, which is no quota
            return microseconds / int((folder / "cpu.cfs_period_us").read_text())
    return None
