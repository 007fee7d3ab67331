"""The threads of a training: workers, which reconnect when their server is lost, and the evaluator."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcluster.programs import settings
from tfcluster.programs.linear.config import are_finite, check_divergence
from tfcluster.programs.linear.coordinator import TrainingCoordinator
from tfcluster.programs.linear.model import EvaluationGraph, TrainingGraph
from tfcluster.programs.linear.parameter_client import LOSSES, connect, is_responsive
from tfcluster.programs.scheduler import StepRange, next_size
from tfcluster.programs.sessions import close, count_operations, leak, short_task

v1 = tf.compat.v1


class Worker(threading.Thread):
    """A thread that trains on its devices, block by block, until no steps remain.

    It has one device, or all devices with synchronous training. The first device's task is the session's master. All
    workers wait at the start barrier before their first step.
    """

    _graph: TrainingGraph

    def __init__(
        self, coordinator: TrainingCoordinator, name: str, devices: Sequence[str], start_barrier: threading.Barrier
    ) -> None:
        super().__init__(name=name, daemon=True)  # a cancelled run does not wait for a step in progress
        self._coordinator = coordinator
        self._config = coordinator.config
        self._notes = coordinator.config.context.notes
        self._devices = list(devices)
        self._start_barrier = start_barrier
        self._session: Any = None

    def run(self) -> None:
        """Train. An error stops the whole training."""
        try:
            if self._prepare():
                with contextlib.suppress(threading.BrokenBarrierError):
                    self._start_barrier.wait(settings.WORKER_START_SECONDS)
                self._coordinator.start_clock()
                self._train()
        except Exception as error:  # carried to the main thread, which raises it
            self._coordinator.fail(error)
        finally:
            self._coordinator.worker_exited()  # before closing, which may block for as long as a server hangs
            close(self._session)

    def _prepare(self) -> bool:
        """Open the session and have the servers prepare the loop by running zero steps.

        Return False if the worker is lost or the training has been stopped.
        """
        self._graph = TrainingGraph(self._config, self._devices)
        self._coordinator.initialized.wait()
        if self._coordinator.stopped.is_set():
            return False
        try:
            self._connect()
            metadata = v1.RunMetadata()
            self._run_steps(StepRange(0, 0), v1.RunOptions(output_partition_graphs=True), metadata)
            self._coordinator.count_operations(count_operations(metadata))
        except LOSSES as error:
            return self._recover(error)
        return True

    def _train(self) -> None:
        scheduler = self._coordinator.scheduler
        size = settings.TRAINING_FIRST_STEPS
        failures = 0  # consecutive failures since the last finished block
        while (block := scheduler.take(size)) is not None:
            started_at = time.monotonic()
            try:
                results = self._run_steps(block)
            except LOSSES as error:
                scheduler.requeue(block)
                failures += 1
                if failures >= settings.WORKER_FAILURES_MAX:
                    self._leak_session()
                    self._notes.append(f"{self.name}: failed {failures} times in a row: {_describe(error)}")
                    return
                if not self._recover(error):
                    return
                # The worker may only have been slow, because a step of a large batch takes seconds: try fewer steps.
                size = max(1, min(settings.TRAINING_FIRST_STEPS, block.count // 2))
                continue
            scheduler.finish(block)
            failures = 0
            check_divergence(int(results["step"]), {name: results[name] for name in ("w", "b", "loss")})
            seconds = time.monotonic() - started_at
            self._coordinator.report_block(self.name, self._devices, block.count, seconds, results)
            size = next_size(block.count, block.count, seconds, settings.TRAINING_CALL_SECONDS)

    def _connect(self) -> None:
        devices = [*self._devices, *self._config.roles.servers]
        self._session = connect(self._config.context, self._graph.graph, devices)

    def _leak_session(self) -> None:
        leak(self._session)
        self._session = None

    def _run_steps(self, block: StepRange, options: Any = None, metadata: Any = None) -> dict[str, Any]:
        feed = {self._graph.first: block.first, self._graph.count: block.count}
        results: dict[str, Any] = self._session.run(self._graph.results, feed, options, metadata)
        return results

    def _recover(self, error: Exception) -> bool:
        """Retry with new sessions until one works; return False if the worker does not recover or the training ends."""
        lost_at = time.monotonic()
        deadline: float | None = None
        is_extended = False
        while not self._coordinator.stopped.is_set():
            self._leak_session()
            self._coordinator.parameters.restore_lost()
            # The timeout starts when the parameter servers are up, because a worker cannot recover without them.
            deadline = deadline or time.monotonic() + settings.PARAMETER_RECOVERY_SECONDS
            try:
                self._connect()
                self._run_steps(StepRange(0, 0))
            except LOSSES as retry_error:
                if time.monotonic() < deadline:
                    time.sleep(settings.PARAMETER_RETRY_SECONDS)
                elif lost := [each for each in self._devices if not is_responsive(self._config.context, each)]:
                    if not self._continue_without(lost, retry_error):
                        return False
                    deadline = None
                elif not is_extended:  # all devices respond, so the worker has only just recovered: extend once
                    deadline, is_extended = None, True
                else:
                    self._notes.append(f"{self.name}: answers, but cannot train: {_describe(retry_error)}")
                    return False
            else:
                seconds = time.monotonic() - lost_at
                self._notes.append(f"{self.name}: lost for {seconds:.1f} s ({type(error).__name__}), then went on")
                return True
        self._notes.append(f"{self.name}: lost ({type(error).__name__}) and not back when the training ended")
        return False

    def _continue_without(self, lost: Sequence[str], error: Exception) -> bool:
        """Continue without the devices whose tasks do not respond; return False if no device remains."""
        for device in lost:
            self._notes.append(
                f"{short_task(device)}: lost ({type(error).__name__}) and not back within "
                f"{settings.PARAMETER_RECOVERY_SECONDS:.0f} s; the training went on without it"
            )
        self._devices = [device for device in self._devices if device not in lost]
        if self._devices:
            self._graph = TrainingGraph(self._config, self._devices)
        return bool(self._devices)


class Evaluator(threading.Thread):
    """A thread that computes the loss on all data twice a second, and once more when the training has ended.

    `scores` has the [step, loss] of each evaluation, downsampled evenly when there are more than 2,000.
    """

    def __init__(self, coordinator: TrainingCoordinator, device: str) -> None:
        super().__init__(name=short_task(device), daemon=True)
        self.scores: list[list[float]] = []
        self._coordinator = coordinator
        self._config = coordinator.config
        self._device = device

    def run(self) -> None:
        """Evaluate until the training has ended. A lost task is retried at each evaluation."""
        context = self._config.context
        evaluation = EvaluationGraph(self._config, self._device)
        self._coordinator.initialized.wait()
        session: Any = None
        last_error: Exception | None = None
        is_last = False
        while True:
            try:
                if session is None:
                    session = connect(context, evaluation.graph, [self._device, *self._config.roles.servers])
                self._add_score(session.run(evaluation.results))
                last_error = None
            except (tf.errors.OpError, ConnectionError) as error:
                leak(session)
                session, last_error = None, error
            if is_last:
                break
            is_last = self._coordinator.stopped.wait(settings.EVALUATION_INTERVAL_SECONDS)
        close(session)
        if last_error is not None:
            kind = type(last_error).__name__
            context.notes.append(f"{self.name} does not answer ({kind}): the last parameters have no score")

    def _add_score(self, results: dict[str, Any]) -> None:
        values = {name: float(results[name]) for name in ("loss", "w", "b")}
        if not are_finite(values):
            return  # the training reports its divergence itself
        step = int(results["step"])
        if len(self.scores) >= 2 * settings.EVALUATION_SCORES_MIN:
            del self.scores[::2]
        self.scores.append([step, values["loss"]])
        context, seconds = self._config.context, round(self._coordinator.seconds, 6)
        context.emit("metric", worker=self.name, step=step, **values, seconds=seconds)
        context.stats_of(self._device)["scores"] = len(self.scores)


def _describe(error: Exception) -> str:
    """Return the error's class and the first line that describes it; skip lines in which TensorFlow names a task."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("From /job:")]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
