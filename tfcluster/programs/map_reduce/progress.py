"""Report the progress of shards: at the first result, and then at a limited rate."""

from __future__ import annotations

import time

from tfcluster import settings
from tfcluster.programs.context import Context
from tfcluster.programs.sessions import without_replica


def work_of(context: Context, device: str) -> dict[str, int]:
    """Return the work counters of a device, which become part of the run's result."""
    return context.work.setdefault(without_replica(device), {"ops": 0})


class Progress:
    """Counts the work done by each device and emits progress events.

    Args:
        context: The run.
        total: Total amount of work, in `unit`.
        unit: The unit of work, in the plural, such as `samples`.
    """

    def __init__(self, context: Context, total: int, unit: str) -> None:
        self._context = context
        self._total = total
        self._unit = unit
        self._done = 0
        self._reported: float | None = None

    def add(self, device: str, done: int) -> None:
        """Add work done by a device.

        Args:
            device: Full name of the device.
            done: Amount of work, in the unit of this progress.
        """
        work = work_of(self._context, device)
        work[self._unit] = work.get(self._unit, 0) + done
        self._done += done
        now = time.monotonic()
        if self._reported is None or now - self._reported >= settings.PROGRESS_INTERVAL_SECONDS:
            self._reported = now
            self._context.progress(self._done, self._total, self._unit)
