"""The steps of a training, handed out to workers in blocks; what a lost worker did not finish is handed out again."""

from __future__ import annotations

import threading
from dataclasses import dataclass

#: Seconds that a block should take: a round trip (some ms) does not show, and progress and a cancel come soon.
BLOCK_SECONDS = 0.3
#: Steps of a worker's first block. So many bring Adagrad to the neighbourhood of the solution.
FIRST_BLOCK = 10


@dataclass(frozen=True)
class StepRange:
    """Consecutive steps.

    Attributes:
        first: The number of the first.
        count: How many.
        generation: How often the training had been set back when the block was taken.
    """

    first: int
    count: int
    generation: int = 0


class StepScheduler:
    """Which steps are still to be done; used by all workers at once.

    Args:
        first: The number of the first step.
        steps: How many there are.
        workers: How many share them.
    """

    def __init__(self, first: int, steps: int, workers: int) -> None:
        self._changed = threading.Condition()
        self._first = first
        self._end = first + steps
        self._workers = workers
        self._next = first
        self._returned: list[StepRange] = []
        self._under_way: set[StepRange] = set()
        self._generation = 0
        self._opening: StepRange | None = None
        self._stopped = False

    @property
    def steps(self) -> int:
        """All the steps."""
        return self._end - self._first

    @property
    def done(self) -> int:
        """How many steps are done."""
        with self._changed:
            left = sum(block.count for block in (*self._returned, *self._under_way))
            return self._next - self._first - left

    @property
    def is_done(self) -> bool:
        """Whether all steps are done."""
        return self.done == self.steps

    @property
    def rollback_count(self) -> int:
        """How often the variables became those of an earlier step again."""
        with self._changed:
            return self._generation

    def take(self, size: int) -> StepRange | None:
        """The next block, of at most `size` steps and a fair share of those left; None when nothing more is to be done.

        Waits while nothing is left: others might return what they have taken, and a setback have all done again. Waits
        also while the first block is under way, which is done alone: at first gradients are largest, and those of all
        workers, each of the same values, would together go far beyond the solution.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or (self._left() and self._opening not in self._under_way))
            if self._stopped:
                return None
            if self._returned:
                block = self._returned.pop()
                if block.count > size:
                    self._returned.append(StepRange(block.first + size, block.count - size, self._generation))
                    block = StepRange(block.first, size, self._generation)
            else:
                count = min(size, -(-(self._end - self._next) // self._workers))
                block = StepRange(self._next, count, self._generation)
                self._next += count
            self._opening = self._opening or block
            self._under_way.add(block)
            return block

    def finish(self, block: StepRange) -> None:
        """A block is done; one from before a setback no longer counts."""
        with self._changed:
            self._under_way.discard(block)
            self._changed.notify_all()

    def requeue(self, block: StepRange) -> None:
        """A block was not finished: somebody else, or the same worker later, does it."""
        with self._changed:
            if block in self._under_way:
                self._under_way.discard(block)
                self._returned.append(block)
            self._changed.notify_all()

    def rollback(self, step: int) -> None:
        """The variables are those of an earlier step again: what was done since is to be done once more."""
        with self._changed:
            self._generation += 1
            self._next = min(self._next, max(step, self._first))
            self._returned.clear()
            self._under_way.clear()
            self._changed.notify_all()

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _left(self) -> bool:
        return bool(self._returned) or self._next < self._end


def next_size(count: int, seconds: float) -> int:
    """Steps for the block after one of `count` steps that took `seconds`: so many as take `BLOCK_SECONDS`.

    At most four times as many: the first steps after a start are no measure.
    """
    return max(1, min(4 * count, int(count * BLOCK_SECONDS / max(seconds, 1e-6))))
