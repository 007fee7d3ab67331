"""Schedule numbered work on devices: what every scheduler has, and the scheduler of shards.

Shards are independent of each other: they may be done in any order, and a straggler may be done twice (a backup task).
The steps of a training are neither, so `linear.step_scheduler` shares the base class only.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfcluster import settings


def next_size(size: int, count: int, seconds: float, target: float) -> int:
    """Return how much work a device should take next, such that it takes `target` seconds.

    The amount grows at most fourfold, because the duration of the first steps after a start is not representative.

    Args:
        size: The amount that the device asked for before.
        count: The amount that it got.
        seconds: How long it took for that.
        target: How long the next work should take, in seconds.
    """
    return max(1, min(4 * size, int(count * target / max(seconds, 1e-6))))


class WorkScheduler:
    """What hands out work to threads until it is stopped: the base class of schedulers. Thread-safe."""

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
    """The shards `first` … `first + count - 1`.

    Attributes:
        first: The first shard.
        count: Number of shards.
        losses: Number of tasks that were lost while they worked on these shards.
        devices: The devices that currently work on these shards.
        began: When the latest of these devices began, in monotonic seconds.
    """

    first: int
    count: int
    losses: int = 0
    devices: set[str] = field(default_factory=set)
    began: float = 0.0


class ShardScheduler(WorkScheduler):
    """Hands out shards to the threads of devices. Thread-safe.

    Args:
        shards: Number of shards.
        devices: Full names of the devices that work.
        own: By device, ranges of shards that only this device does unless it is lost (pinned shards). Any device may
            take the other shards.
    """

    def __init__(self, shards: int, devices: Sequence[str], own: Mapping[str, Sequence[range]] | None = None) -> None:
        super().__init__()
        self._devices = len(devices)
        self._own = {device: deque(_spans((own or {}).get(device, ()))) for device in devices}
        self._free = deque(_spans(_gaps(shards, own or {})))
        self._under_way: dict[int, ShardRange] = {}
        self._slowest = 0.0

    def take(self, device: str, size: int, now: float) -> ShardRange | None:
        """Take the next shards for a device.

        The device first gets shards pinned to it, then shards that any device may take, and finally a straggler of
        another device.

        Args:
            device: Full name of the device.
            size: Largest number of shards. Of shards that any device may take, a device gets at most a fair share.
            now: The current time, in monotonic seconds.

        Returns:
            The shards, or None if there are none for this device.
        """
        with self._changed:
            if self._stopped:
                return None
            source = self._own[device] or self._free
            if source:
                left = source[0].count if source is not self._free else sum(span.count for span in source)
                fair = left if source is not self._free else -(-left // self._devices)
                span = _cut(source, min(size, fair))
                self._under_way[span.first] = span
            else:
                doubtful = [span for span in self._under_way.values() if self._is_in_doubt(span, device, now)]
                if not doubtful:
                    return None
                span = doubtful[0]
            span.devices.add(device)
            span.began = now
            return span

    def finish(self, span: ShardRange, seconds: float) -> bool:
        """Record that a device has done its shards.

        Args:
            span: The shards.
            seconds: Duration of the step.

        Returns:
            False if another device had already done them.
        """
        with self._changed:
            self._slowest = max(self._slowest, seconds / span.count)
            first = self._under_way.pop(span.first, None) is span
            self._changed.notify_all()
            return first

    def lose(self, span: ShardRange, device: str, *, worked: bool) -> None:
        """Requeue the shards that a device was working on, and unpin its own shards, so that any device can take them.

        Args:
            span: The shards that the device was working on.
            device: Full name of the device.
            worked: Whether the device was lost during the step, and not before it.
        """
        with self._changed:
            span.devices.discard(device)
            span.losses += worked
            if self._under_way.get(span.first) is span and not span.devices:
                del self._under_way[span.first]
                self._free.appendleft(span)
            self._free.extend(self._own[device])
            self._own[device].clear()
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the state of the shards changes, for at most `seconds`.

        Returns:
            False if no shards will become available any more.
        """
        with self._changed:
            if self._stopped or not (self._free or self._under_way or any(self._own.values())):
                return False
            self._changed.wait(settings.MAP_STRAGGLER_POLL_SECONDS if seconds is None else seconds)
            return not self._stopped

    def _is_in_doubt(self, span: ShardRange, device: str, now: float) -> bool:
        bound = settings.MAP_STRAGGLER_SECONDS + settings.MAP_STRAGGLER_FACTOR * span.count * self._slowest
        return self._slowest > 0 and device not in span.devices and now - span.began > bound


def _spans(ranges: Sequence[range]) -> list[ShardRange]:
    return [ShardRange(each.start, len(each)) for each in ranges if each]


def _gaps(shards: int, own: Mapping[str, Sequence[range]]) -> list[range]:
    """Return the ranges of shards that are not pinned to any device."""
    gaps, end = [], 0
    for each in sorted((each for ranges in own.values() for each in ranges), key=lambda each: each.start):
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
