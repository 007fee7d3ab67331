"""How far the shards are, told at the first and then as often as somebody who looks on wants to know."""

from __future__ import annotations

import time

from tfcluster.programs.context import Context
from tfcluster.programs.session import without_replica

_SECONDS = 0.1


def work_of(context: Context, device: str) -> dict[str, int]:
    """What a device did so far; part of the result."""
    return context.work.setdefault(without_replica(device), {"ops": 0})


class Progress:
    """Counts the work that is done, and by whom.

    Args:
        context: The run.
        total: All the work, in `unit`.
        unit: What is counted, in the plural, as `samples`.
    """

    def __init__(self, context: Context, total: int, unit: str) -> None:
        self._context = context
        self._total = total
        self._unit = unit
        self._done = 0
        self._reported: float | None = None

    def add(self, device: str, done: int) -> None:
        """Count what a device has done."""
        work = work_of(self._context, device)
        work[self._unit] = work.get(self._unit, 0) + done
        self._done += done
        now = time.monotonic()
        if self._reported is None or now - self._reported >= _SECONDS:
            self._reported = now
            self._context.progress(self._done, self._total, self._unit)
