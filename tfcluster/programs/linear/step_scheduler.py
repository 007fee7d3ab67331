"""Schedule the steps of a training: hand out blocks of steps to workers and requeue the blocks of lost workers.

Unlike shards, steps change shared variables. Each therefore counts once: no straggler has a backup task, and after a
parameter server was lost, the steps since the restored snapshot are scheduled again, also those that were done.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.programs.scheduler import WorkScheduler


@dataclass(frozen=True)
class StepRange:
    """A block of consecutive steps.

    Attributes:
        first: The number of the first step.
        count: Number of steps.
        generation: Number of rollbacks before the block was taken.
    """

    first: int
    count: int
    generation: int = 0


class StepScheduler(WorkScheduler):
    """Schedules the remaining steps of a training. Thread-safe; all workers share it.

    Args:
        first: The number of the first step.
        steps: Number of steps.
        workers: Number of workers that share the steps.
    """

    def __init__(self, first: int, steps: int, workers: int) -> None:
        super().__init__()
        self._first = first
        self._end = first + steps
        self._workers = workers
        self._next = first
        self._returned: list[StepRange] = []
        self._under_way: set[StepRange] = set()
        self._generation = 0
        self._opening: StepRange | None = None

    @property
    def steps(self) -> int:
        """Return the total number of steps."""
        return self._end - self._first

    @property
    def done(self) -> int:
        """Return the number of steps that are done."""
        with self._changed:
            left = sum(block.count for block in (*self._returned, *self._under_way))
            return self._next - self._first - left

    @property
    def is_done(self) -> bool:
        """Return whether all steps are done."""
        return self.done == self.steps

    @property
    def rollback_count(self) -> int:
        """Return how often the training was rolled back to the variables of an earlier step."""
        with self._changed:
            return self._generation

    def take(self, size: int) -> StepRange | None:
        """Take the next block.

        Wait while no steps are left, because another worker may requeue its block and a rollback may require steps to
        be repeated. Wait also while the first block is in progress: it is done by one worker alone, because gradients
        are largest at first, and the gradients of all workers, computed from the same values, would together overshoot
        the solution.

        Args:
            size: Largest number of steps in the block. A block of new steps is also limited to a fair share of the
                remaining ones.

        Returns:
            The block, or None when the scheduler is stopped.
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
        """Record that a block is done. A block taken before a rollback does not count."""
        with self._changed:
            self._under_way.discard(block)
            self._changed.notify_all()

    def requeue(self, block: StepRange) -> None:
        """Requeue an unfinished block, for another worker or for the same worker later."""
        with self._changed:
            if block in self._under_way:
                self._under_way.discard(block)
                self._returned.append(block)
            self._changed.notify_all()

    def rollback(self, step: int) -> None:
        """Roll back to an earlier step whose variables were restored, so that the steps since then are repeated.

        Args:
            step: The global step of the restored variables.
        """
        with self._changed:
            self._generation += 1
            self._next = min(self._next, max(step, self._first))
            self._returned.clear()
            self._under_way.clear()
            self._changed.notify_all()

    def _left(self) -> bool:
        return bool(self._returned) or self._next < self._end
