"""Numbered shards of work, taken by devices as they get free; whoever adds up the parts does the reducing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

Value = TypeVar("Value")

# Long enough that a round trip (1 ms) does not show, short enough for progress and a quick cancel.
_STEP_SECONDS = 0.4
_FIRST_STEP = 1


@dataclass(frozen=True)
class Part(Generic[Value]):
    """What one device made of the shards `first` … `first + count - 1`."""

    device: str
    first: int
    count: int
    value: Value


def map_shards(devices: Sequence[str], shards: int, step: Callable[[str, int, int], Value]) -> Iterator[Part[Value]]:
    """Run `step(device, first, count)` on all shards, all devices at once, and yield the parts as they come.

    A device takes the next shards when it has done its last, so many that they take it about 0.4 s: a fast
    device does more. The parts' bounds depend on timing, so `step` must give values whose combination
    does not depend on the bounds.

    Raises:
        ValueError: There is work and no device.
        Exception: What `step` raised first; no device begins another step after that.
    """
    if shards and not devices:
        raise ValueError("there is no device to work on")
    work = _Work(shards, len(devices))
    results: SimpleQueue[Part[Value] | Exception] = SimpleQueue()

    def take_steps(device: str) -> None:
        try:
            size = _FIRST_STEP
            while taken := work.take(size):
                began = time.monotonic()
                results.put(Part(device, *taken, step(device, *taken)))
                seconds = max(time.monotonic() - began, 1e-6)
                size = max(1, min(4 * size, int(taken[1] * _STEP_SECONDS / seconds)))
        except Exception as error:  # carried to the caller's thread, which raises it
            work.stop()
            results.put(error)

    for device in devices:
        # Daemons: a cancelled run does not wait for the steps under way.
        threading.Thread(target=take_steps, args=(device,), daemon=True).start()
    done = 0
    try:
        while done < shards:
            outcome = results.get()
            if isinstance(outcome, Exception):
                raise outcome
            done += outcome.count
            yield outcome
    finally:
        work.stop()


class _Work:
    """The shards that nobody has taken yet."""

    def __init__(self, shards: int, devices: int) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._end = shards
        self._devices = devices

    def take(self, size: int) -> tuple[int, int] | None:
        """The first and the number of the next shards, at most `size` and a fair share; None when done."""
        with self._lock:
            left = self._end - self._next
            if left <= 0:
                return None
            count = min(size, -(-left // self._devices))
            first, self._next = self._next, self._next + count
            return first, count

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self._end = self._next
