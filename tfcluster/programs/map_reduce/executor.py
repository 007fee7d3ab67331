"""Numbered shards of work, taken by devices as they get free; whoever adds up the parts does the reducing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfcluster.errors import ClusterError
from tfcluster.programs.map_reduce.scheduler import ShardRange, ShardScheduler

Value = TypeVar("Value")

# Long enough that a round trip (1 ms) does not show, short enough for progress and a quick cancel.
_STEP_SECONDS = 0.4
_FIRST_STEP = 1
# An agent has a killed server back in tens of milliseconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
#: Seconds without any device after which the work has failed.
PATIENCE = 5.0
_LOOK_SECONDS = 0.5
#: Tasks that a shard may cost: one that ends every task which works on it must not do so for ever.
MOST_LOSSES = 5


class DeviceLostError(Exception):
    """A device cannot work: its task died, was started again, or does not answer.

    Args:
        message: What happened, as `worker:1 at localhost:2224 does not answer`.
        worked: Whether it was lost at work, not before.
    """

    def __init__(self, message: str, *, worked: bool) -> None:
        super().__init__(message)
        self.worked = worked


class StepTimeoutError(Exception):
    """A step took longer than a call to a task may, on a device that is well.

    Args:
        seconds: How long it may take.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"a step took longer than {seconds:.0f} s")
        self.seconds = seconds


@dataclass(frozen=True)
class ShardResult(Generic[Value]):
    """What one device made of the shards `first` … `first + count - 1`."""

    device: str
    first: int
    count: int
    value: Value


def map_shards(
    devices: Sequence[str],
    shards: int,
    step: Callable[[str, int, int], Value],
    *,
    own: Mapping[str, Sequence[range]] | None = None,
) -> Iterator[ShardResult[Value]]:
    """Run `step(device, first, count)` on all shards, all devices at once, and yield the parts as they come.

    A device takes the next shards when it has done its last, so many that they take it about 0.4 s: a fast
    device does more. The parts' bounds depend on timing, so `step` must give values whose combination
    does not depend on the bounds.

    A step that raises LostDeviceError is done again, on whichever device is free; its device is tried again after a
    pause. A step that takes very much longer than others is done on a second device too. One of several shards that
    raises LongStepError is done again in smaller ones. Each shard is in one part.

    Args:
        devices: Who works.
        shards: How many shards there are.
        step: The work; called in one thread for each device.
        own: Ranges of shards that a device does alone, unless it is lost.

    Raises:
        ValueError: There is work and no device.
        ClusterError: Every device was lost for some seconds, shards cost one task after the other, or a single shard
            takes too long.
        Exception: What `step` raised first; no device begins another step after that.
    """
    if shards and not devices:
        raise ValueError("there is no device to work on")
    work = ShardScheduler(shards, devices, own)
    results: queue.SimpleQueue[ShardResult[Value] | Exception] = queue.SimpleQueue()
    workers = [_Worker(device, work, step, results) for device in devices]
    for worker in workers:
        # Daemons: a cancelled run does not wait for the steps under way.
        threading.Thread(target=worker.take_steps, daemon=True).start()
    done = 0
    try:
        while done < shards:
            try:
                outcome = results.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                _raise_if_all_are_lost(workers, time.monotonic())
                continue
            if isinstance(outcome, Exception):
                raise outcome
            done += outcome.count
            yield outcome
    finally:
        work.stop()


class _Worker(Generic[Value]):
    """One device's thread.

    Attributes:
        lost: Since when the device is lost, in monotonic seconds, and why; None while it is well.
        trying: It has a step under way, of which nobody knows yet how it will end.
    """

    def __init__(
        self,
        device: str,
        work: ShardScheduler,
        step: Callable[[str, int, int], Value],
        results: queue.SimpleQueue[ShardResult[Value] | Exception],
    ) -> None:
        self.lost: tuple[float, DeviceLostError] | None = None
        self.trying = False
        self._device = device
        self._work = work
        self._step = step
        self._results = results

    def take_steps(self) -> None:
        """Work until nothing is left."""
        size, pause = _FIRST_STEP, _FIRST_PAUSE
        try:
            while True:
                span = self._work.take(self._device, size, time.monotonic())
                if span is None:
                    if not self._work.wait():
                        return
                elif (seconds := self._do(span)) is not None:
                    size, pause = max(1, min(4 * size, int(span.count * _STEP_SECONDS / seconds))), _FIRST_PAUSE
                else:
                    self._work.pause(pause)
                    size, pause = _FIRST_STEP, min(2 * pause, _LONGEST_PAUSE)
        except Exception as error:  # carried to the caller's thread, which raises it
            self._work.stop()
            self._results.put(error)

    def _do(self, span: ShardRange) -> float | None:
        """Do one step; the seconds that it took, at least, or None when the device was lost."""
        self.trying = True
        began = time.monotonic()
        try:
            value = self._step(self._device, span.first, span.count)
        except DeviceLostError as error:
            self.lost = (time.monotonic() if self.lost is None else self.lost[0], error)
            self._work.lose(span, self._device, worked=error.worked)
            if span.losses >= MOST_LOSSES:
                raise _costs_tasks(span, error) from error
            return None
        except StepTimeoutError as error:
            if span.count == 1:
                raise _takes_too_long(span, error) from error
            self.lost = None
            self._work.lose(span, self._device, worked=False)
            return error.seconds
        finally:
            self.trying = False
        self.lost = None
        seconds = max(time.monotonic() - began, 1e-6)
        if self._work.finish(span, seconds):
            self._results.put(ShardResult(self._device, span.first, span.count, value))
        return seconds


def _raise_if_all_are_lost(workers: Sequence[_Worker[Value]], now: float) -> None:
    """Fail when no device has worked for some seconds and none is being tried."""
    losses = [worker.lost for worker in workers if not worker.trying]
    lost = [loss for loss in losses if loss is not None and now - loss[0] > PATIENCE]
    if len(lost) == len(workers):
        raise ClusterError(
            "; ".join(dict.fromkeys(str(error) for _, error in lost)),
            hint="`tfcluster status` shows the tasks, `tfcluster events` what happened to them.",
        )


def _costs_tasks(span: ShardRange, error: DeviceLostError) -> ClusterError:
    which = f"shard {span.first}" if span.count == 1 else f"shards {span.first} to {span.first + span.count - 1}"
    return ClusterError(
        f"{span.losses} tasks were lost while they worked on {which}, the last time so: {error}",
        hint="`tfcluster events` shows what ended the tasks; shards that need less memory may help.",
    )


def _takes_too_long(span: ShardRange, error: StepTimeoutError) -> ClusterError:
    return ClusterError(
        f"shard {span.first} takes longer than the {error.seconds:.0f} s that a step may take",
        hint="Make more and smaller shards of the work.",
    )
