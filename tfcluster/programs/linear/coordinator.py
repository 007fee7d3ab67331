"""What the workers of a training share, and what they tell of it: progress, metrics, summaries."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.programs.linear.checkpoints import Summaries
from tfcluster.programs.linear.config import TrainingConfig
from tfcluster.programs.linear.model import shares_of
from tfcluster.programs.linear.parameter_client import ParameterClient
from tfcluster.programs.linear.step_scheduler import StepScheduler
from tfcluster.programs.session import without_replica

#: Seconds between two metric events of a worker, at most.
METRIC_SECONDS = 0.3


class TrainingCoordinator:
    """The workers' common state; every method may be called by any thread.

    Attributes:
        plan: The training.
        ledger: The steps that are left.
        parameters: The variables.
        initialised: Set when the variables have values.
        news: Set when all steps are done, no worker is left, or something went wrong.
        ended: Set when nobody is to begin anything any more.
        error: What went wrong first.
        steps: How many steps were done, those that were done again included.
    """

    def __init__(
        self,
        plan: TrainingConfig,
        ledger: StepScheduler,
        parameters: ParameterClient,
        workers: int,
        summaries: Summaries | None,
    ) -> None:
        self.plan = plan
        self.ledger = ledger
        self.parameters = parameters
        self.initialised = threading.Event()
        self.news = threading.Event()
        self.ended = threading.Event()
        self.error: Exception | None = None
        self.steps = 0
        self._lock = threading.Lock()
        self._left = workers
        self._summaries = summaries
        self._began: float | None = None
        self._done_at: float | None = None
        self._told: dict[str, float] = {}

    @property
    def stopped(self) -> bool:
        """Whether nobody is to begin anything any more."""
        return self.ended.is_set()

    @property
    def is_empty(self) -> bool:
        """Whether no worker is left."""
        return not self._left

    @property
    def seconds(self) -> float:
        """How long the training took so far, from when the first worker was ready until all steps were done."""
        now = time.monotonic() if self._done_at is None else self._done_at
        return 0.0 if self._began is None else now - self._began

    def begin(self) -> None:
        """A worker is ready to train."""
        with self._lock:
            self._began = self._began or time.monotonic()

    def leave(self) -> None:
        """A worker trains no more."""
        with self._lock:
            self._left -= 1
            if not self._left:
                self.news.set()

    def fail(self, error: Exception) -> None:
        """A worker met an error that ends the training."""
        with self._lock:
            self.error = self.error or error
        self.stop()
        self.news.set()

    def stop(self) -> None:
        """Have every worker end after its block; those that wait for steps or for the variables, now."""
        self.ledger.stop()
        self.ended.set()
        self.initialised.set()

    def note(self, text: str) -> None:
        """Say something that the user should know of the run."""
        self.plan.context.notes.append(text)

    def count_operations(self, operations: Mapping[str, int]) -> None:
        """Count the operations of a worker's graph, by device."""
        with self._lock:
            for device, count in operations.items():
                work = self.plan.context.work.setdefault(device, {"ops": 0})
                work["ops"] += count

    def record(self, worker: str, devices: Sequence[str], steps: int, seconds: float, found: Mapping[str, Any]) -> None:
        """A worker has done a block.

        Args:
            worker: Its name.
            devices: Its devices.
            steps: How many steps.
            seconds: How long they took.
            found: The results of the training graph.
        """
        metrics = {name: float(found[name]) for name in ("loss", "w", "b")}
        step = int(found["step"])
        with self._lock:
            self.steps += steps
            for device, (begin, end) in zip(devices, shares_of(self.plan.batch, len(devices)), strict=True):
                work = self.plan.context.work.setdefault(without_replica(device), {"ops": 0})
                work["steps"] = work.get("steps", 0) + steps
                work["examples"] = work.get("examples", 0) + steps * (end - begin)
            if self._summaries is not None:
                self._summaries.add(step, metrics)
            if self.ledger.is_done:
                self._done_at = time.monotonic()
                self.news.set()
            if not self._is_due(worker):
                return
            rate = round(steps * self.plan.batch / max(seconds, 1e-6))
            self.plan.context.progress(self.ledger.done, self.ledger.steps, "steps")
            elapsed = round(self.seconds, 6)
            self.plan.context.emit("metric", worker=worker, step=step, **metrics, examples_per_s=rate, seconds=elapsed)

    def _is_due(self, worker: str) -> bool:
        """Whether a worker is to report again: at first, when most changes, more often than later."""
        now = self.seconds
        if now - self._told.get(worker, -METRIC_SECONDS) < min(METRIC_SECONDS, now / 2):
            return False
        self._told[worker] = now
        return True
