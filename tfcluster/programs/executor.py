"""Execute numbered shards of work on devices in parallel, with retries; the caller reduces the results."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfcluster.errors import ClusterError
from tfcluster.programs import settings
from tfcluster.programs.scheduler import ShardRange, ShardScheduler

Value = TypeVar("Value")


class DeviceLostError(Exception):
    """Raised when a device cannot be used because its task died, was restarted, or does not respond."""

    def __init__(self, message: str, *, worked: bool) -> None:
        super().__init__(message)
        self.worked = worked  # it was lost during a step, and not before it


class StepTimeoutError(Exception):
    """Raised when a step takes longer than its timeout, `seconds`, on a device that is healthy."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"a step took longer than {seconds:.0f} s")
        self.seconds = seconds


@dataclass(frozen=True)
class ShardResult(Generic[Value]):
    """The value that one device computed for the shards `first` … `first + count - 1`."""

    device: str
    first: int
    count: int
    value: Value


def map_shards(
    devices: Sequence[str],
    shards: int,
    step: Callable[[str, int, int], Value],
    *,
    pinned: Mapping[str, Sequence[range]] | None = None,
    first_size: int = 1,
    backups: bool = True,
    all_lost_seconds: float | None = None,
    late: Sequence[str] = (),
    joins: Callable[[str], bool] = lambda device: True,
) -> Iterator[ShardResult[Value]]:
    """Run `step(device, first, count)` on all shards, on all devices in parallel, and yield the results as they arrive.

    A device takes as many shards at a time as should take it about 0.4 s, so a fast device does more of them. The
    bounds of a step thus depend on timing, and the combination of the values must not depend on the bounds.

    A step that raises DeviceLostError is done again on any free device, and its own device is retried after a back-off.
    A step of several shards that raises StepTimeoutError is done again in smaller ones. Each shard is in one result.

    Args:
        devices: Full names of the devices, each of which has a thread that calls `step`.
        pinned: By device, ranges of shards that only this device does unless it is lost.
        first_size: Number of shards in a device's first step.
        backups: Whether a step that takes long may be run on a second device too, as it has no side effects.
        all_lost_seconds: How long all devices may be lost; None for `settings.MAP_ALL_LOST_SECONDS`.
        late: Further devices, each of which takes shards once `joins` returns True for it.

    Raises:
        ClusterError: Every device stayed lost, the same shards lost too many tasks, or one takes too long.
        Exception: The first other exception of `step`; no device begins another step after it.
    """
    if shards and not devices:
        raise ValueError("there is no device to work on")
    scheduler = ShardScheduler(shards, [*devices, *late], pinned, backups=backups)
    results: queue.SimpleQueue[ShardResult[Value] | Exception] = queue.SimpleQueue()
    workers = [_Worker(device, scheduler, step, results, first_size) for device in devices]
    for worker in [*workers]:
        _start(worker.take_steps)
    for device in late:
        _start(_Worker(device, scheduler, step, results, first_size).join, workers, joins)
    done = 0
    try:
        while done < shards:
            result = _next_result(results, workers, all_lost_seconds)
            done += result.count
            yield result
    finally:
        scheduler.stop()


def _start(target: Callable[..., None], *args: object) -> None:
    # A daemon thread, so that a cancelled run does not wait for the steps in progress.
    threading.Thread(target=target, args=args, daemon=True).start()


def _next_result(
    results: queue.SimpleQueue[ShardResult[Value] | Exception],
    workers: Sequence[_Worker[Value]],
    all_lost_seconds: float | None,
) -> ShardResult[Value]:
    """Wait for the next result; raise the exception that a step raised, or an error if every device stays lost."""
    limit = settings.MAP_ALL_LOST_SECONDS if all_lost_seconds is None else all_lost_seconds
    while True:
        try:
            result = results.get(timeout=settings.MAP_POLL_SECONDS)
        except queue.Empty:
            _raise_if_all_are_lost(workers, time.monotonic() - limit)
            continue
        if isinstance(result, Exception):
            raise result
        return result


class _Worker(Generic[Value]):
    """The thread of one device."""

    def __init__(
        self,
        device: str,
        scheduler: ShardScheduler,
        step: Callable[[str, int, int], Value],
        results: queue.SimpleQueue[ShardResult[Value] | Exception],
        first_size: int,
    ) -> None:
        self.lost: tuple[float, DeviceLostError] | None = None  # since when, in monotonic seconds, and the latest error
        self.is_trying = False  # a step is in progress
        self._device = device
        self._scheduler = scheduler
        self._step = step
        self._results = results
        self._first_size = first_size

    def join(self, workers: list[_Worker[Value]], joins: Callable[[str], bool]) -> None:
        """Join the workers once the device may, and take steps."""
        while not joins(self._device):
            if not self._scheduler.pause(settings.MAP_RETRY_MAX_SECONDS):
                return
        workers.append(self)
        self.take_steps()

    def take_steps(self) -> None:
        size, pause = self._first_size, settings.MAP_RETRY_INITIAL_SECONDS
        try:
            while True:
                span = self._scheduler.take(self._device, size, time.monotonic())
                if span is None:
                    if not self._scheduler.wait():
                        return
                elif (seconds := self._run_step(span)) is not None:
                    size = next_size(size, span.count, seconds)
                    pause = settings.MAP_RETRY_INITIAL_SECONDS
                else:
                    self._scheduler.pause(pause)
                    pause = min(2 * pause, settings.MAP_RETRY_MAX_SECONDS)
                    # It may only have been slow.
                    size = max(1, min(self._first_size, span.count // 2))
        except Exception as error:  # passed to the caller's thread, which raises it
            self._scheduler.stop()
            self._results.put(error)

    def _run_step(self, span: ShardRange) -> float | None:
        """Run one step; return its duration in seconds (at least, if it timed out), or None if the device was lost."""
        self.is_trying = True
        started_at = time.monotonic()
        try:
            value = self._step(self._device, span.first, span.count)
        except DeviceLostError as error:
            self.lost = (time.monotonic() if self.lost is None else self.lost[0], error)
            self._scheduler.requeue(span, self._device, worked=error.worked)
            if span.losses >= settings.MAP_SHARD_LOSSES_MAX:
                raise _lost_tasks_error(span, error) from error
            return None
        except StepTimeoutError as error:
            if span.count == 1:
                raise ClusterError(
                    f"shard {span.first} takes longer than {error.seconds:.0f} s, the limit of a step",
                    hint="Make more and smaller shards of the work.",
                ) from error
            self.lost = None
            self._scheduler.requeue(span, self._device, worked=False)
            return error.seconds
        finally:
            self.is_trying = False
        self.lost = None
        seconds = max(time.monotonic() - started_at, 1e-6)
        if self._scheduler.finish(span, seconds):
            self._results.put(ShardResult(self._device, span.first, span.count, value))
        return seconds


def next_size(size: int, count: int, seconds: float) -> int:
    """Return how many shards a device should take next, such that they take `MAP_STEP_SECONDS`.

    The device last requested `size` and got `count`, which took `seconds`. The number grows at most fourfold, because
    the duration of the first steps after a start is not representative.
    """
    return max(1, min(4 * size, int(count * settings.MAP_STEP_SECONDS / max(seconds, 1e-6))))


def _raise_if_all_are_lost(workers: Sequence[_Worker[Value]], since: float) -> None:
    """Raise an error if all devices have been lost since then, in monotonic seconds, and none is being retried."""
    losses = [worker.lost for worker in workers if not worker.is_trying]
    lost = [loss for loss in losses if loss is not None and loss[0] < since]
    if len(lost) == len(workers):
        raise ClusterError(
            "; ".join(dict.fromkeys(str(error) for _, error in lost)),
            hint="`tfcluster status` shows the tasks, `tfcluster events` what happened to them.",
        )


def _lost_tasks_error(span: ShardRange, error: DeviceLostError) -> ClusterError:
    shards = f"shard {span.first}" if span.count == 1 else f"shards {span.first} to {span.first + span.count - 1}"
    return ClusterError(
        f"{span.losses} tasks were lost while they worked on {shards}; the last loss: {error}",
        hint="`tfcluster events` shows what ended the tasks; shards that require less memory might help.",
    )
