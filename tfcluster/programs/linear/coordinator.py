"""Coordinate a training: start, monitor and stop its threads, take snapshots, write checkpoints, report progress."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.programs import settings
from tfcluster.programs.linear.checkpoints import Checkpoints, Summaries
from tfcluster.programs.linear.config import TrainingConfig, are_finite, check_divergence
from tfcluster.programs.linear.parameter_client import ParameterClient, Values
from tfcluster.programs.scheduler import StepScheduler


class TrainingCoordinator:
    """Runs the threads of a training, and has the state that they share. Thread-safe.

    Attributes:
        initialized: Set when the variables have values, or the training is stopped.
        stopped: Set when the training is stopped; threads then begin no further work.
        steps: Number of steps done, including steps that were repeated.
    """

    def __init__(
        self,
        config: TrainingConfig,
        scheduler: StepScheduler,
        parameters: ParameterClient,
        workers: int,
        summaries: Summaries | None,
    ) -> None:
        self.config = config
        self.scheduler = scheduler
        self.parameters = parameters
        self.initialized = threading.Event()
        self.stopped = threading.Event()
        self.steps = 0
        self._context = config.context
        self._lock = threading.Lock()
        # Wakes the main thread: all steps are done, no worker remains, or an error occurred.
        self._wakeup = threading.Event()
        self._error: Exception | None = None
        self._workers = workers
        self._summaries = summaries
        self._started_at: float | None = None
        self._done_at: float | None = None
        self._metric_times: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Return the seconds from when the first worker was ready until all steps were done, or until now."""
        now = time.monotonic() if self._done_at is None else self._done_at
        return 0.0 if self._started_at is None else now - self._started_at

    def train(
        self,
        threads: Sequence[threading.Thread],
        values: Values | None,
        checkpoints: Checkpoints | None,
        checkpoint_every: float,
    ) -> Values:
        """Initialize the variables and run the threads until the training has ended; return the variables' last values.

        The sessions are closed in every case, because a server keeps the graph of a session that is not closed for as
        long as the server lives.

        `values` are those of a checkpoint; None stands for the variables' own initial values. `checkpoint_every` is in
        seconds. The error that ended the training early is raised.
        """
        join_timeout = settings.CANCELLED_JOIN_SECONDS
        for thread in threads:
            thread.start()  # threads build their graphs while the variables are initialized
        try:
            self.parameters.initialize(values)
            self.initialized.set()
            final = self._monitor(checkpoints, checkpoint_every)
            join_timeout = settings.WORKER_JOIN_SECONDS
        except Exception:
            raise
        except BaseException:  # the run is cancelled; save a checkpoint so that the next run can resume
            self._stop()
            _join(threads, join_timeout)
            if checkpoints is not None:
                self._write_last_checkpoint(checkpoints)
            join_timeout = 0.0
            raise
        finally:
            self._stop()
            _join(threads, join_timeout)
            _call_with_timeout(settings.CANCELLED_CLOSE_SECONDS, self.parameters.close)
        if checkpoints is not None:
            checkpoints.write(final)
        return final

    def start_clock(self) -> None:
        """Record that a worker is ready to train; the first call starts the clock."""
        with self._lock:
            self._started_at = self._started_at or time.monotonic()

    def worker_exited(self) -> None:
        """Record that a worker has exited."""
        with self._lock:
            self._workers -= 1
            if not self._workers:
                self._wakeup.set()

    def fail(self, error: Exception) -> None:
        """Record an error of a worker and stop the training."""
        with self._lock:
            self._error = self._error or error
        self._stop()
        self._wakeup.set()

    def count_operations(self, operations: Mapping[str, int]) -> None:
        """Add the operation counts of a worker's graph, by device, to the statistics of the run."""
        with self._lock:
            for device, count in operations.items():
                self._context.stats_of(device)["ops"] += count

    def report_block(
        self, worker: str, devices: Sequence[str], steps: int, seconds: float, results: Mapping[str, Any]
    ) -> None:
        """Record that a worker has done a block of steps, and emit progress and metrics when they are due."""
        metrics = {name: float(results[name]) for name in ("loss", "w", "b")}
        step = int(results["step"])
        batches = self.config.batches
        with self._lock:
            self.steps += steps
            for device, (begin, end) in zip(devices, batches.split(len(devices)), strict=True):
                stats = self._context.stats_of(device)
                stats["steps"] = stats.get("steps", 0) + steps
                stats["examples"] = stats.get("examples", 0) + steps * (end - begin)
            if self._summaries is not None:
                self._summaries.add(step, metrics)
            if self.scheduler.is_done:
                self._done_at = time.monotonic()
                self._wakeup.set()
            if not self._is_metric_due(worker):
                return
            rate = round(steps * batches.size / max(seconds, 1e-6))
            self._context.progress(self.scheduler.done, self.scheduler.steps, "steps")
            elapsed = round(self.seconds, 6)
            self._context.emit("metric", worker=worker, step=step, **metrics, examples_per_s=rate, seconds=elapsed)

    def _is_metric_due(self, worker: str) -> bool:
        """Return whether a worker's next metric event is due: more often at first, when the values change most."""
        now, interval = self.seconds, settings.TRAINING_METRIC_SECONDS
        if now - self._metric_times.get(worker, -interval) < min(interval, now / 2):
            return False
        self._metric_times[worker] = now
        return True

    def _stop(self) -> None:
        """Stop all threads: each exits after its current block, or at once if it waits for steps or variables."""
        self.scheduler.stop()
        self.stopped.set()
        self.initialized.set()

    def _monitor(self, checkpoints: Checkpoints | None, checkpoint_every: float) -> Values:
        """Take snapshots of the variables and write checkpoints until the training has ended; return the last values.

        The error that ended the training early is raised.
        """
        written_at = time.monotonic()
        scheduler = self.scheduler
        while True:
            self._wakeup.wait(settings.SNAPSHOT_INTERVAL_SECONDS)
            self._wakeup.clear()
            if self._error is not None:
                raise self._error
            has_workers, is_done, rollback_count = bool(self._workers), scheduler.is_done, scheduler.rollback_count
            values = self.parameters.read()
            check_divergence(int(values["global_step"]), values)
            # Even the loss of a server after the last step costs steps. Workers therefore wait until the final values
            # are read, and the training continues if the read caused a rollback.
            if is_done and scheduler.rollback_count == rollback_count:
                return values
            if not has_workers:
                raise ClusterError(
                    f"no worker was left after {scheduler.done:,} of {scheduler.steps:,} steps: "
                    + "; ".join(self._context.notes),
                    hint="`tfcluster status` shows the tasks, `tfcluster events` what happened to them.",
                )
            if checkpoints is not None and time.monotonic() - written_at >= checkpoint_every:
                checkpoints.write(values)
                written_at = time.monotonic()

    def _write_last_checkpoint(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the current variables, or of the snapshot if the servers do not respond in time."""
        _call_with_timeout(settings.CANCELLED_READ_SECONDS, self.parameters.read)
        if self.parameters.snapshot and are_finite(self.parameters.snapshot):
            checkpoints.write(self.parameters.snapshot)


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait for threads to exit, for at most `seconds` in total."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _call_with_timeout(seconds: float, function: Callable[[], Any]) -> None:
    """Call a function in a thread of its own, ignore its errors, and stop waiting for it after `seconds`.

    The call may fail, or hang because a server hangs.
    """

    def call() -> None:
        with contextlib.suppress(Exception):
            function()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
