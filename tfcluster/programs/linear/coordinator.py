"""Coordinate the workers of a training: shared state, shutdown, and reporting of progress, metrics and summaries."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster import settings
from tfcluster.programs.linear.batches import split_batch
from tfcluster.programs.linear.checkpoints import Summaries
from tfcluster.programs.linear.config import TrainingConfig
from tfcluster.programs.linear.parameter_client import ParameterClient
from tfcluster.programs.linear.step_scheduler import StepScheduler


class TrainingCoordinator:
    """The shared state of a training's workers. All methods are thread-safe.

    Args:
        plan: The settings of the training.
        ledger: The scheduler of the remaining steps.
        parameters: The client of the parameter servers.
        workers: Number of workers.
        summaries: Where to write TensorBoard summaries; None to write none.

    Attributes:
        plan: The settings of the training.
        ledger: The scheduler of the remaining steps.
        parameters: The client of the parameter servers.
        initialised: Set when the variables have values, or the training is stopped.
        news: Set when all steps are done, no worker is left, or an error occurred.
        ended: Set when the training is stopped; threads then begin no further work.
        error: The first error, or None.
        steps: Number of steps done, including steps that were repeated.
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
        """Return whether the training is stopped, so that threads must begin no further work."""
        return self.ended.is_set()

    @property
    def is_empty(self) -> bool:
        """Return whether no worker is left."""
        return not self._left

    @property
    def seconds(self) -> float:
        """Return the seconds from when the first worker was ready until all steps were done, or until now."""
        now = time.monotonic() if self._done_at is None else self._done_at
        return 0.0 if self._began is None else now - self._began

    def begin(self) -> None:
        """Record that a worker is ready to train; the first call starts the clock."""
        with self._lock:
            self._began = self._began or time.monotonic()

    def leave(self) -> None:
        """Record that a worker has exited."""
        with self._lock:
            self._left -= 1
            if not self._left:
                self.news.set()

    def fail(self, error: Exception) -> None:
        """Record an error of a worker and stop the training."""
        with self._lock:
            self.error = self.error or error
        self.stop()
        self.news.set()

    def stop(self) -> None:
        """Stop all workers: each exits after its current block, or at once if it waits for steps or variables."""
        self.ledger.stop()
        self.ended.set()
        self.initialised.set()

    def note(self, text: str) -> None:
        """Add a note for the user to the result of the run."""
        self.plan.context.notes.append(text)

    def count_operations(self, operations: Mapping[str, int]) -> None:
        """Add the operation counts of a worker's graph, by device, to the statistics of the run."""
        with self._lock:
            for device, count in operations.items():
                work = self.plan.context.stats_of(device)
                work["ops"] += count

    def record(self, worker: str, devices: Sequence[str], steps: int, seconds: float, found: Mapping[str, Any]) -> None:
        """Record that a worker has done a block of steps, and emit progress and metrics when they are due.

        Args:
            worker: The worker's name.
            devices: The worker's devices.
            steps: Number of steps in the block.
            seconds: Duration of the block.
            found: The results of the training graph.
        """
        metrics = {name: float(found[name]) for name in ("loss", "w", "b")}
        step = int(found["step"])
        with self._lock:
            self.steps += steps
            for device, (begin, end) in zip(devices, split_batch(self.plan.batch, len(devices)), strict=True):
                work = self.plan.context.stats_of(device)
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
        """Return whether a worker's next metric event is due: more often at first, when the values change most."""
        now = self.seconds
        if now - self._told.get(worker, -settings.TRAINING_METRIC_SECONDS) < min(
            settings.TRAINING_METRIC_SECONDS, now / 2
        ):
            return False
        self._told[worker] = now
        return True
