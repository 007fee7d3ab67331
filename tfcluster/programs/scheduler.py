"""Schedule numbered work on threads of devices: the shards of a map, and the steps of a training.

Shards are independent of each other: they may be done in any order, and a straggler may be done twice (a backup task).
Steps change shared variables. Each therefore counts once: no straggler has a backup task, and after a parameter server
was lost, the steps since the restored snapshot are scheduled again, also those that were done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfcluster.programs import settings


def next_size(size: int, count: int, seconds: float, target: float) -> int:
    """Return how much work a device should take next, such that it takes `target` seconds.

    The device last requested the amount `size` and got `count`, which took `seconds`. The amount grows at most
    fourfold, because the duration of the first steps after a start is not representative.
    """
    return max(1, min(4 * size, int(count * target / max(seconds, 1e-6))))


class WorkScheduler:
    """The base class of schedulers, which hand out work to threads until they are stopped. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stopped = False

    def stop(self) -> None:
        """Stop handing out work, and wake the threads that wait for it."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the scheduler is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, seconds)


@dataclass
class ShardRange:
    """The shards `first` … `first + count - 1`."""

    first: int
    count: int
    losses: int = 0  # number of tasks that were lost while they worked on these shards
    devices: set[str] = field(default_factory=set)  # those that currently work on these shards
    started_at: float = 0.0  # when the latest of these devices started, in monotonic seconds


class ShardScheduler(WorkScheduler):
    """Hands out shards to the threads of devices. Thread-safe.

    `pinned` has, by device, ranges of shards that only this device does unless it is lost. Any device may take the
    other shards.
    """

    def __init__(
        self, shards: int, devices: Sequence[str], pinned: Mapping[str, Sequence[range]] | None = None
    ) -> None:
        super().__init__()
        self._devices = len(devices)
        self._pinned = {device: deque(_spans((pinned or {}).get(device, ()))) for device in devices}
        self._free = deque(_spans(_gaps(shards, pinned or {})))
        self._in_progress: dict[int, ShardRange] = {}
        self._slowest = 0.0

    def take(self, device: str, size: int, now: float) -> ShardRange | None:
        """Take at most `size` of the next shards for a device; return None if there are none for it.

        The device first gets shards pinned to it, then shards that any device may take, and finally a straggler of
        another device. Of shards that any device may take, a device gets at most a fair share. `now` is in monotonic
        seconds.
        """
        with self._changed:
            if self._stopped:
                return None
            source = self._pinned[device] or self._free
            if source:
                is_pinned = source is not self._free
                limit = source[0].count if is_pinned else -(-sum(span.count for span in source) // self._devices)
                span = _cut(source, min(size, limit))
                self._in_progress[span.first] = span
            else:
                stragglers = (span for span in self._in_progress.values() if self._is_straggler(span, device, now))
                if (straggler := next(stragglers, None)) is None:
                    return None
                span = straggler
            span.devices.add(device)
            span.started_at = now
            return span

    def finish(self, span: ShardRange, seconds: float) -> bool:
        """Record that a device has done its shards; return False if another device had already done them."""
        with self._changed:
            self._slowest = max(self._slowest, seconds / span.count)
            is_first = self._in_progress.pop(span.first, None) is span
            self._changed.notify_all()
            return is_first

    def requeue(self, span: ShardRange, device: str, *, worked: bool) -> None:
        """Requeue the shards that a device was working on, and unpin its shards, so that any device can take them.

        `worked` tells whether the device was lost during the step, and not before it.
        """
        with self._changed:
            span.devices.discard(device)
            span.losses += worked
            if self._in_progress.get(span.first) is span and not span.devices:
                del self._in_progress[span.first]
                self._free.appendleft(span)
            self._free.extend(self._pinned[device])
            self._pinned[device].clear()
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` for a change of the shards; return False if none will become available any more."""
        with self._changed:
            if self._stopped or not (self._free or self._in_progress or any(self._pinned.values())):
                return False
            self._changed.wait(settings.MAP_STRAGGLER_POLL_SECONDS if seconds is None else seconds)
            return not self._stopped

    def _is_straggler(self, span: ShardRange, device: str, now: float) -> bool:
        bound = settings.MAP_STRAGGLER_SECONDS + settings.MAP_STRAGGLER_FACTOR * span.count * self._slowest
        return self._slowest > 0 and device not in span.devices and now - span.started_at > bound


@dataclass(frozen=True)
class StepRange:
    """The steps `first` … `first + count - 1`, taken after `generation` rollbacks."""

    first: int
    count: int
    generation: int = 0


class StepScheduler(WorkScheduler):
    """Schedules the remaining steps of a training: `steps` of them, from `first` on. All workers share it."""

    def __init__(self, first: int, steps: int, workers: int) -> None:
        super().__init__()
        self.steps = steps
        self._first = first
        self._end = first + steps
        self._workers = workers
        self._next = first
        self._requeued: list[StepRange] = []
        self._in_progress: set[StepRange] = set()
        self._generation = 0
        self._first_block: StepRange | None = None

    @property
    def done(self) -> int:
        """Return the number of steps that are done."""
        with self._changed:
            pending = sum(block.count for block in (*self._requeued, *self._in_progress))
            return self._next - self._first - pending

    @property
    def is_done(self) -> bool:
        """Return whether all steps are done."""
        return self.done == self.steps

    @property
    def rollback_count(self) -> int:
        """Return how often the training was rolled back."""
        with self._changed:
            return self._generation

    def take(self, size: int) -> StepRange | None:
        """Take the next block of at most `size` steps; return None when the scheduler is stopped.

        Wait while no steps remain, because another worker may requeue its block and a rollback may require steps to be
        repeated. Wait also while the first block is in progress: it is done by one worker alone, because gradients are
        largest at first, and the gradients of all workers, computed from the same values, would together overshoot the
        solution. A block of new steps is also limited to a fair share of the remaining ones.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._can_take())
            if self._stopped:
                return None
            if self._requeued:
                block = self._requeued.pop()
                if block.count > size:
                    self._requeued.append(StepRange(block.first + size, block.count - size, self._generation))
                    block = StepRange(block.first, size, self._generation)
            else:
                count = min(size, -(-(self._end - self._next) // self._workers))
                block = StepRange(self._next, count, self._generation)
                self._next += count
            self._first_block = self._first_block or block
            self._in_progress.add(block)
            return block

    def finish(self, block: StepRange) -> None:
        """Record that a block is done. A block taken before a rollback does not count."""
        with self._changed:
            self._in_progress.discard(block)
            self._changed.notify_all()

    def requeue(self, block: StepRange) -> None:
        """Requeue an unfinished block, for another worker or for the same worker later."""
        with self._changed:
            if block in self._in_progress:
                self._in_progress.discard(block)
                self._requeued.append(block)
            self._changed.notify_all()

    def rollback(self, step: int) -> None:
        """Roll back to an earlier step whose variables were restored, so that the steps since then are repeated."""
        with self._changed:
            self._generation += 1
            self._next = min(self._next, max(step, self._first))
            self._requeued.clear()
            self._in_progress.clear()
            self._changed.notify_all()

    def _can_take(self) -> bool:
        return bool(self._requeued or self._next < self._end) and self._first_block not in self._in_progress


def _spans(ranges: Sequence[range]) -> list[ShardRange]:
    return [ShardRange(each.start, len(each)) for each in ranges if each]


def _gaps(shards: int, pinned: Mapping[str, Sequence[range]]) -> list[range]:
    """Return the ranges of shards that are not pinned to any device."""
    gaps, end = [], 0
    for each in sorted((each for ranges in pinned.values() for each in ranges), key=lambda each: each.start):
        gaps.append(range(end, each.start))
        end = max(end, each.stop)
    return [*gaps, range(end, shards)]


def _cut(spans: deque[ShardRange], size: int) -> ShardRange:
    """Remove at most `size` shards from the front and return them."""
    span = spans.popleft()
    if span.count > size:
        spans.appendleft(ShardRange(span.first + size, span.count - size, span.losses))
        span = ShardRange(span.first, size, span.losses)
    return span
