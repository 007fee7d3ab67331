"""Schedule numbered shards of work on threads of devices."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfcluster.programs import settings


@dataclass
class ShardRange:
    """The shards `first` … `first + count - 1`."""

    first: int
    count: int
    losses: int = 0  # number of tasks that were lost while they worked on these shards
    devices: set[str] = field(default_factory=set)  # those that currently work on these shards
    started_at: float = 0.0  # when the latest of these devices started, in monotonic seconds


class ShardScheduler:
    """Hands out shards to the threads of devices. Thread-safe.

    `pinned` has, by device, ranges of shards that only this device does unless it is lost. Any device may take the
    other shards. With `backups`, a free device is given those of a straggler too.
    """

    def __init__(
        self,
        shards: int,
        devices: Sequence[str],
        pinned: Mapping[str, Sequence[range]] | None = None,
        *,
        backups: bool = True,
    ) -> None:
        self._changed = threading.Condition()
        self._stopped = False
        self._devices = len(devices)
        self._backups = backups
        self._pinned = {device: deque(_spans((pinned or {}).get(device, ()))) for device in devices}
        self._free = deque(_spans(_gaps(shards, pinned or {})))
        self._in_progress: dict[int, ShardRange] = {}
        self._slowest = 0.0

    def take(self, device: str, size: int, now: float) -> ShardRange | None:
        """Take at most `size` of the next shards for a device; return None if there are none for it.

        The device first gets shards pinned to it, then a fair share of those that any device may take, and finally a
        straggler of another device. `now` is in monotonic seconds.
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
        """Requeue a device's shards, and unpin its others; `worked` says whether it was lost during the step."""
        with self._changed:
            span.devices.discard(device)
            span.losses += worked
            if self._in_progress.get(span.first) is span and not span.devices:
                del self._in_progress[span.first]
                self._free.appendleft(span)
            self._free.extend(self._pinned[device])
            self._pinned[device].clear()
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait a moment for a change of the shards; return False if none will become available any more."""
        with self._changed:
            if self._stopped or not (self._free or self._in_progress or any(self._pinned.values())):
                return False
            self._changed.wait(settings.MAP_STRAGGLER_POLL_SECONDS)
            return not self._stopped

    def pause(self, seconds: float) -> bool:
        """Sleep for `seconds`, or until the scheduler is stopped; return False if it is stopped."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._stopped, seconds)

    def stop(self) -> None:
        """Stop handing out shards, and wake the threads that wait for them."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _is_straggler(self, span: ShardRange, device: str, now: float) -> bool:
        bound = settings.MAP_STRAGGLER_SECONDS + settings.MAP_STRAGGLER_FACTOR * span.count * self._slowest
        return self._backups and self._slowest > 0 and device not in span.devices and now - span.started_at > bound


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
