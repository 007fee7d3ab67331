"""Give numbered shards of work to devices, a thread for each, until all are done; the caller combines the values.

A device takes the next shards when it is free. Those of a lost device are given to another one. A device that is back,
or that was not ready at the start, takes part as soon as its task answers.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfcluster.errors import ClusterError
from tfcluster.programs import settings

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
    late: Collection[str] = (),
    answers: Callable[[str], bool] = lambda device: True,
    lost_seconds: float | None = None,
) -> Iterator[ShardResult[Value]]:
    """Run `step(device, first, count)` on all shards, on all devices in parallel, and yield the results as they arrive.

    The devices begin with one shard each, in their order. Then a device takes as many at a time as should take it about
    0.4 s, so a fast device does more of them. The bounds of a step thus depend on timing, and the combination of the
    values must not depend on the bounds.

    A step that raises DeviceLostError is done again on any free device, and its own device takes no other step before
    it answers. A step of several shards that raises StepTimeoutError is done again in smaller ones. Each shard is in
    one result.

    Args:
        devices: Full names of the devices, each of which has a thread that calls `step`.
        late: Those of them that were not ready at the start.
        answers: Returns whether a device that was lost or late can be used by now.
        lost_seconds: How long all devices may be lost; None for `settings.MAP_ALL_LOST_SECONDS`.

    Raises:
        ClusterError: Every device stayed lost, the same shards lost too many tasks, or one takes too long.
        Exception: The first other exception of `step`; no device begins another step after it.
    """
    if shards and not devices:
        raise ValueError("there is no device to work on")
    waiting = ShardQueue(shards, len(devices))
    results: queue.SimpleQueue[ShardResult[Value] | BaseException] = queue.SimpleQueue()
    ready = [device for device in devices if device not in late]
    firsts = {device: waiting.take(1) for device in ready[:shards]}
    workers = [_Worker(device, waiting, step, answers, results, is_late=device in late) for device in devices]
    for worker in workers:
        # A daemon thread, so that a cancelled run does not wait for the steps in progress.
        threading.Thread(target=worker.run, args=(firsts.get(worker.device),), daemon=True).start()
    limit = settings.MAP_ALL_LOST_SECONDS if lost_seconds is None else lost_seconds
    done = 0
    try:
        while done < shards:
            result = _next_result(results, workers, limit)
            done += result.count
            yield result
    finally:
        waiting.stop()


def _next_result(
    results: queue.SimpleQueue[ShardResult[Value] | BaseException],
    workers: Sequence[_Worker[Value]],
    lost_seconds: float,
) -> ShardResult[Value]:
    """Wait for the next result; raise the exception that a step raised, or an error if every device stays lost."""
    while True:
        try:
            result = results.get(timeout=settings.MAP_POLL_SECONDS)
        except queue.Empty:
            _raise_if_all_are_lost(workers, time.monotonic() - lost_seconds)
            continue
        if isinstance(result, BaseException):
            raise result
        return result


def _raise_if_all_are_lost(workers: Sequence[_Worker[Value]], since: float) -> None:
    """Raise an error if all devices have been lost since then, in monotonic seconds, and none is being tried."""
    if any(worker.is_trying or worker.lost_at is None or worker.lost_at >= since for worker in workers):
        return
    raise ClusterError(
        "; ".join(dict.fromkeys(str(worker.error) for worker in workers if worker.error)) or "no device answers",
        hint="`tfcluster status` shows the tasks, `tfcluster events` what happened to them.",
    )


@dataclass
class Span:
    """The shards `first` … `first + count - 1`."""

    first: int
    count: int
    losses: int = 0  # number of tasks that were lost while they worked on these shards


class ShardQueue:
    """The shards that are to be done, in their order; those that are put back come first. Thread-safe."""

    def __init__(self, shards: int, devices: int) -> None:
        self._changed = threading.Condition()
        self._devices = devices
        self._waiting = deque([Span(0, shards)] if shards else [])
        self._in_progress = 0
        self._is_stopped = False

    def take(self, size: int) -> Span | None:
        """Take at most `size` of the next shards, and no more than a device's fair share of all that wait.

        Wait if there are none now, as those in progress may be put back. Return None if all are done, or after `stop`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._in_progress or self._is_stopped)
            if self._is_stopped or not self._waiting:
                return None
            share = -(-sum(span.count for span in self._waiting) // self._devices)
            span = self._waiting.popleft()
            if span.count > (size := min(size, share)):
                self._waiting.appendleft(Span(span.first + size, span.count - size, span.losses))
                span = Span(span.first, size, span.losses)
            self._in_progress += 1
            return span

    def finish(self) -> None:
        """Record that the shards of one `take` are done."""
        with self._changed:
            self._in_progress -= 1
            self._changed.notify_all()

    def put_back(self, span: Span) -> None:
        """Give the shards of one `take` to the next device that is free."""
        with self._changed:
            self._in_progress -= 1
            self._waiting.appendleft(span)
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Sleep for `seconds`, or until there is nothing more to do; return False then."""

        def has_ended() -> bool:
            return self._is_stopped or not (self._waiting or self._in_progress)

        with self._changed:
            return not self._changed.wait_for(has_ended, seconds)

    def stop(self) -> None:
        """Hand out no more shards, and wake the threads that wait for them."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


class _Worker(Generic[Value]):
    """The thread of one device."""

    def __init__(
        self,
        device: str,
        waiting: ShardQueue,
        step: Callable[[str, int, int], Value],
        answers: Callable[[str], bool],
        results: queue.SimpleQueue[ShardResult[Value] | BaseException],
        *,
        is_late: bool,
    ) -> None:
        self.lost_at = time.monotonic() if is_late else None  # in monotonic seconds; None while it is not lost
        self.error: DeviceLostError | None = None  # the latest loss
        self.is_trying = False  # a step is in progress
        self.device = device
        self._waiting = waiting
        self._step = step
        self._answers = answers
        self._results = results

    def run(self, first: Span | None) -> None:
        """Take steps until all shards are done, the first one on shards that were taken for this device already.

        What a step raises is passed to the caller's thread, which raises it.
        """
        try:
            self._take_steps(first)
        except BaseException as error:  # also a SystemExit, which would end this thread alone
            self._waiting.stop()
            self._results.put(error)

    def _take_steps(self, first: Span | None) -> None:
        size, pause = 1, settings.MAP_RETRY_INITIAL_SECONDS
        while True:
            if self.lost_at is None or self._answers(self.device):
                span, first = first or self._waiting.take(size), None
                if span is None:
                    return
                seconds = self._run_step(span)
                if seconds is not None:
                    size, pause = next_size(size, span.count, seconds), settings.MAP_RETRY_INITIAL_SECONDS
                    continue
                size = 1
            if not self._waiting.pause(pause):
                return
            pause = min(2 * pause, settings.MAP_RETRY_MAX_SECONDS)

    def _run_step(self, span: Span) -> float | None:
        """Run one step; return its duration in seconds (at least, if it timed out), or None if the device was lost."""
        self.is_trying = True
        started_at = time.monotonic()
        try:
            value = self._step(self.device, span.first, span.count)
        except DeviceLostError as error:
            self.lost_at, self.error = self.lost_at or time.monotonic(), error
            span.losses += error.worked
            if span.losses >= settings.MAP_SHARD_LOSSES_MAX:
                raise _lost_tasks_error(span, error) from error
            self._waiting.put_back(span)
            return None
        except StepTimeoutError as error:
            if span.count == 1:
                raise ClusterError(
                    f"shard {span.first} takes longer than {error.seconds:.0f} s, the limit of a step",
                    hint="Make more and smaller shards of the work.",
                ) from error
            self.lost_at = None
            self._waiting.put_back(span)
            return error.seconds
        finally:
            self.is_trying = False
        self.lost_at = None
        self._results.put(ShardResult(self.device, span.first, span.count, value))
        self._waiting.finish()
        return max(time.monotonic() - started_at, 1e-6)


def next_size(size: int, count: int, seconds: float) -> int:
    """Return how many shards a device should take next, such that they take `MAP_STEP_SECONDS`.

    The device last requested `size` and got `count`, which took `seconds`. The number grows at most fourfold, because
    the duration of the first steps after a start is not representative.
    """
    return max(1, min(4 * size, int(count * settings.MAP_STEP_SECONDS / max(seconds, 1e-6))))


def _lost_tasks_error(span: Span, error: DeviceLostError) -> ClusterError:
    shards = f"shard {span.first}" if span.count == 1 else f"shards {span.first} to {span.first + span.count - 1}"
    return ClusterError(
        f"{span.losses} tasks were lost while they worked on {shards}; the last loss: {error}",
        hint="`tfcluster events` shows what ended the tasks; shards that require less memory might help.",
    )
