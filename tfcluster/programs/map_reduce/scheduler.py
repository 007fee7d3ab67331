"""Which shards nobody has taken yet, which are under way and where, and which must be done again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# A step is in doubt when it takes so much longer than the slowest before it; a free device then does it as well
# (Dean and Ghemawat's backup tasks, OSDI 2004), as a task that was stopped is never noticed by TensorFlow.
_DOUBT_SECONDS = 5.0
_DOUBT_TIMES = 5.0
# How often a device that has nothing to do looks for a step in doubt.
_LOOK_SECONDS = 0.25


@dataclass
class ShardRange:
    """The shards `first` … `first + count - 1`.

    Attributes:
        first: The first of them.
        count: How many they are.
        losses: How many tasks were lost while they worked on them.
        devices: The devices that work on them now.
        began: When the latest of these began, in monotonic seconds.
    """

    first: int
    count: int
    losses: int = 0
    devices: set[str] = field(default_factory=set)
    began: float = 0.0


class ShardScheduler:
    """Hands out shards to the threads of devices.

    Args:
        shards: How many there are.
        devices: Who works on them.
        own: Shards, as ranges, that a device does alone while it is there; all others are anybody's.
    """

    def __init__(self, shards: int, devices: Sequence[str], own: Mapping[str, Sequence[range]] | None = None) -> None:
        self._changed = threading.Condition()
        self._devices = len(devices)
        self._own = {device: deque(_spans((own or {}).get(device, ()))) for device in devices}
        self._free = deque(_spans(_gaps(shards, own or {})))
        self._under_way: dict[int, ShardRange] = {}
        self._slowest = 0.0
        self._stopped = False

    def take(self, device: str, size: int, now: float) -> ShardRange | None:
        """The next shards for a device: at most `size`, of what is anybody's a fair share; None if there are none."""
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
        """Note that a device has done its shards; False when another one had done them before."""
        with self._changed:
            self._slowest = max(self._slowest, seconds / span.count)
            first = self._under_way.pop(span.first, None) is span
            self._changed.notify_all()
            return first

    def lose(self, span: ShardRange, device: str, *, worked: bool) -> None:
        """Have others do what a device had under way, and what was its own.

        Args:
            span: What it had under way.
            device: The device.
            worked: Whether it was lost at work, not before.
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

    def wait(self, seconds: float = _LOOK_SECONDS) -> bool:
        """Wait for shards to come free, at most so long; False when no more will."""
        with self._changed:
            if self._stopped or not (self._free or self._under_way or any(self._own.values())):
                return False
            self._changed.wait(seconds)
            return not self._stopped

    def pause(self, seconds: float) -> None:
        """Wait so long, less when the work ends before."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, seconds)

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _is_in_doubt(self, span: ShardRange, device: str, now: float) -> bool:
        bound = _DOUBT_SECONDS + _DOUBT_TIMES * span.count * self._slowest
        return self._slowest > 0 and device not in span.devices and now - span.began > bound


def _spans(ranges: Sequence[range]) -> list[ShardRange]:
    return [ShardRange(each.start, len(each)) for each in ranges if each]


def _gaps(shards: int, own: Mapping[str, Sequence[range]]) -> list[range]:
    """The ranges of shards that are nobody's own."""
    gaps, end = [], 0
    for each in sorted((each for ranges in own.values() for each in ranges), key=lambda each: each.start):
        gaps.append(range(end, each.start))
        end = max(end, each.stop)
    return [*gaps, range(end, shards)]


def _cut(spans: deque[ShardRange], size: int) -> ShardRange:
    """Take at most `size` shards from the front."""
    span = spans.popleft()
    if span.count > size:
        spans.appendleft(ShardRange(span.first + size, span.count - size, span.losses))
        span = ShardRange(span.first, size, span.losses)
    return span
