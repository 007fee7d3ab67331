"""Train: workers do the steps as shards of `map_shards`, an evaluator scores, and the main thread does all the rest.

Unlike shards, steps change shared variables: after the loss of a parameter server, the steps since the restored
snapshot are done again.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfcluster.core.text import summarize_error
from tfcluster.errors import ClusterError
from tfcluster.programs import settings
from tfcluster.programs.linear.checkpoints import LogFolder
from tfcluster.programs.linear.model import EvaluationGraph, TrainingConfig, TrainingGraph
from tfcluster.programs.linear.servers import (
    LOSSES,
    ParameterClient,
    RolledBackError,
    TrainingSession,
    Values,
    is_responsive,
)
from tfcluster.programs.sessions import close_all, run_and_count, short_task
from tfcluster.programs.shards import DeviceLostError, ShardResult, map_shards


@dataclass(frozen=True)
class Block:
    """Steps that a worker has done."""

    results: dict[str, Any]  # as TrainingGraph has them
    seconds: float
    devices: list[str]


class Worker:
    """Trains on one device, or on several in synchronous training. The first one's task is the session's master."""

    _graph: TrainingGraph

    def __init__(self, config: TrainingConfig, name: str, devices: Sequence[str], parameters: ParameterClient) -> None:
        self.name = name
        self.devices = list(devices)  # those that are left
        self.lost: tuple[float, Exception] | None = None  # since when, in monotonic seconds, and the error
        self.session: TrainingSession | None = None  # on the devices and the parameter servers
        self._config = config
        self._parameters = parameters
        self._notes = config.context.notes
        self._deadline: float | None = None  # of the recovery, in monotonic seconds
        self._has_begun = False
        self._lock = threading.Lock()  # after a rollback a block may still be in progress when the next one begins

    def prepare(self) -> dict[str, int]:
        """Build the graph, and have the servers prepare its loop by running zero steps.

        Return the operations by device; none if that was begun before, or a server is lost.
        """
        if self._has_begun:
            return {}
        self._has_begun = True
        with self._lock:
            self.session = self._build()
        self._parameters.read()  # so that the variables have values
        try:
            return run_and_count(self.session.run, self._graph.results, self._feed(0, 0))[1]
        except LOSSES as error:
            self.lost = time.monotonic(), error
            return {}

    def train(self, first: int, count: int) -> Block:
        """Do the steps `first` … `first + count - 1`.

        Raises DeviceLostError if a server is lost; the next call connects again. Raises RolledBackError if the
        variables are those of an earlier step.
        """
        with self._lock:
            if self.lost is not None:
                self._prepare_recovery(self.lost[1])
            assert self.session is not None
            started_at = time.monotonic()
            try:
                results = self.session.run(self._graph.results, self._feed(first, count))
            except LOSSES as error:
                self.lost = self.lost or (time.monotonic(), error)
                problem = summarize_error(f"{type(error).__name__}: {error}")
                raise DeviceLostError(f"{self.name}: {problem}", worked=False) from error
            if self.lost is not None:
                seconds, kind = started_at - self.lost[0], type(self.lost[1]).__name__
                self._notes.append(f"{self.name}: lost for {seconds:.1f} s ({kind}), then continued")
                self.lost = self._deadline = None
            return Block(results, time.monotonic() - started_at, self.devices)

    def _build(self) -> TrainingSession:
        self._graph = TrainingGraph(self._config, self.devices)
        return TrainingSession(self._config, self._graph.graph, *self.devices)

    def _feed(self, first: int, count: int) -> dict[Any, int]:
        return {self._graph.first: first, self._graph.count: count}

    def _prepare_recovery(self, error: Exception) -> None:
        """Restore the variables if they are lost too; after a while, continue without devices that do not respond."""
        self._parameters.read()
        # The timeout starts when the parameter servers are up, because a worker cannot recover without them.
        self._deadline = self._deadline or time.monotonic() + settings.PARAMETER_RECOVERY_SECONDS
        if len(self.devices) == 1 or time.monotonic() < self._deadline:
            return
        lost = [device for device in self.devices if not is_responsive(self._config, device)]
        if not 0 < len(lost) < len(self.devices):
            return
        self.devices = [device for device in self.devices if device not in lost]
        self.session = self._build()
        self._notes += [
            f"{short_task(device)}: lost ({type(error).__name__}) and not back within "
            f"{settings.PARAMETER_RECOVERY_SECONDS:.0f} s; the training continued without it"
            for device in lost
        ]


class Training:
    """A training from its beginning, or from a checkpoint, to its end."""

    def __init__(
        self, config: TrainingConfig, parameters: ParameterClient, workers: Sequence[Worker], log: LogFolder
    ) -> None:
        self.config = config
        self.ended = threading.Event()
        self.steps_done = 0  # including steps that were repeated
        self._context = config.context
        self.parameters = parameters
        self._workers = {worker.name: worker for worker in workers}
        self._log = log
        self._started_at: float | None = None
        self._done_at: float | None = None
        self._read_at = time.monotonic()
        self._metric_times: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Return the seconds from when the workers were ready until all steps were done, or until now."""
        now = time.monotonic() if self._done_at is None else self._done_at
        return 0.0 if self._started_at is None else now - self._started_at

    def run(self, first: int, steps: int, evaluators: Sequence[Evaluator]) -> Values:
        """Do the steps from `first` on; return the variables' last values.

        Checkpoints are written meanwhile, at the end, and when the run is cancelled. The sessions are closed in every
        case, because a server keeps the graph of a session that is not closed for as long as it lives.
        """
        join_seconds, close_seconds = settings.CANCELLED_JOIN_SECONDS, settings.CANCELLED_CLOSE_SECONDS
        for evaluator in evaluators:
            evaluator.start()
        try:
            final = self._train(first, steps)
            join_seconds, close_seconds = settings.EVALUATOR_JOIN_SECONDS, settings.SESSION_CLOSE_SECONDS
        except BaseException as error:
            # A run that is cancelled leaves a checkpoint, so that the next run can resume.
            if self._log.folder is not None and not isinstance(error, Exception):
                self._write_last_checkpoint()
            raise
        finally:
            self.ended.set()
            self.parameters.initialized.set()  # so that the evaluator does not wait for them any more
            for evaluator in evaluators:
                evaluator.join(join_seconds)
            self._note_lost_workers()
            owners: list[ParameterClient | Worker | Evaluator] = [self.parameters, *self._workers.values(), *evaluators]
            close_all([each.session for each in owners if each.session is not None], close_seconds)
        self._log.write(final)
        return final

    def _train(self, first: int, steps: int) -> Values:
        done = 0
        while True:
            try:
                if self._started_at is None:
                    self._prepare()
                for part in self._blocks(first, steps, done):
                    done += part.count
                    self._report_block(part, done, steps)
                    if time.monotonic() - self._read_at >= settings.SNAPSHOT_INTERVAL_SECONDS:
                        self._log.write_if_due(self._read())
                if done == steps:
                    return self._read()
            except RolledBackError as error:  # even after the last step
                done = min(steps, max(0, error.step - first))

    def _prepare(self) -> None:
        """Have all workers prepare at once, and start the clock when those that respond have done it."""
        names, workers = list(self._workers), list(self._workers.values())
        prepare = lambda _, first, count: [worker.prepare() for worker in workers[first : first + count]]  # noqa: E731
        for part in map_shards(names, len(workers), prepare):
            for device, count in (each for operations in part.value for each in operations.items()):
                self._context.stats_of(device)["ops"] += count
        self._started_at = time.monotonic()

    def _blocks(self, first: int, steps: int, done: int) -> Iterator[ShardResult[Block]]:
        """Do the steps after those that are done, and yield the blocks; if none are done, only some steps.

        The very first blocks are done one after another, because gradients are largest at first, and the gradients of
        all workers, computed from the same values, would together overshoot the solution.
        """
        count = steps - done if done else min(steps, settings.TRAINING_FIRST_STEPS)
        turn = contextlib.nullcontext() if done else threading.Lock()

        def train(name: str, begin: int, size: int) -> Block:
            with turn:
                return self._workers[name].train(first + done + begin, size)

        return map_shards(list(self._workers), count, train, lost_seconds=settings.WORKERS_LOST_SECONDS)

    def _report_block(self, part: ShardResult[Block], done: int, steps: int) -> None:
        block, batches = part.value, self.config.batches
        metrics = {name: float(block.results[name]) for name in ("loss", "w", "b")}
        step = int(block.results["step"])
        check_divergence(step, metrics)
        self.steps_done += part.count
        for device, (begin, end) in zip(block.devices, batches.split(len(block.devices)), strict=True):
            stats = self._context.stats_of(device)
            stats["steps"] = stats.get("steps", 0) + part.count
            stats["examples"] = stats.get("examples", 0) + part.count * (end - begin)
        self._log.add_summary(step, metrics)
        if done == steps:
            self._done_at = time.monotonic()
        # Metrics are more frequent at first, when the values change most.
        now, interval = self.seconds, settings.TRAINING_METRIC_SECONDS
        if now - self._metric_times.get(part.device, -interval) < min(interval, now / 2):
            return
        self._metric_times[part.device] = now
        self._context.progress(done, steps, "steps")
        metrics["examples_per_s"] = round(part.count * batches.size / max(block.seconds, 1e-6))
        self._context.emit("metric", worker=part.device, step=step, **metrics, seconds=round(now, 6))

    def _read(self) -> Values:
        values = self.parameters.read()
        self._read_at = time.monotonic()
        check_divergence(int(values["global_step"]), values)
        return values

    def _note_lost_workers(self) -> None:
        for worker in self._workers.values():
            if worker.lost is not None:
                kind = type(worker.lost[1]).__name__
                self._context.notes.append(f"{worker.name}: lost ({kind}) and not back when the training ended")

    def _write_last_checkpoint(self) -> None:
        """Write a checkpoint of the current variables, or of the snapshot if the servers do not respond in time."""

        def read() -> None:
            with contextlib.suppress(Exception):
                self.parameters.read()

        reading = threading.Thread(target=read, daemon=True)  # which a server that hangs blocks
        reading.start()
        reading.join(settings.CANCELLED_READ_SECONDS)
        if self.parameters.snapshot and _are_finite(self.parameters.snapshot):
            self._log.write(self.parameters.snapshot)


class Evaluator(threading.Thread):
    """A thread that computes the loss on all data twice a second, and once more when the training has ended."""

    def __init__(self, training: Training, device: str) -> None:
        super().__init__(name=short_task(device), daemon=True)
        self.scores: list[list[float]] = []  # [step, loss] of each evaluation, downsampled evenly above 2,000
        self.session: TrainingSession | None = None
        self._training = training
        self._config = training.config
        self._device = device

    def run(self) -> None:
        """Evaluate until the training has ended. A lost task is retried at each evaluation."""
        evaluation = EvaluationGraph(self._config, self._device)
        self.session = TrainingSession(self._config, evaluation.graph, self._device)
        self._training.parameters.initialized.wait()
        is_last = False
        while True:
            last_error: Exception | None = None
            try:
                self._add_score(self.session.run(evaluation.results))
            except (tf.errors.OpError, ConnectionError) as error:
                last_error = error
            if is_last:
                break
            is_last = self._training.ended.wait(settings.EVALUATION_INTERVAL_SECONDS)
        if last_error is not None:
            kind = type(last_error).__name__
            self._config.context.notes.append(
                f"{self.name} does not answer ({kind}): the last parameters have no score"
            )

    def _add_score(self, results: Mapping[str, Any]) -> None:
        values = {name: float(results[name]) for name in ("loss", "w", "b")}
        if not _are_finite(values):
            return  # the training reports its divergence itself
        step = int(results["step"])
        if len(self.scores) >= 2 * settings.EVALUATION_SCORES_MIN:
            del self.scores[::2]
        self.scores.append([step, values["loss"]])
        context, seconds = self._config.context, round(self._training.seconds, 6)
        context.emit("metric", worker=self.name, step=step, **values, seconds=seconds)
        context.stats_of(self._device)["scores"] = len(self.scores)


def check_divergence(step: int, values: Mapping[str, Any]) -> None:
    """Raise an error if w, b or another value after `step` steps is not finite."""
    if not _are_finite(values):
        raise ClusterError(
            f"the training diverged: after step {step:,} w is {values['w']:g} and b is {values['b']:g}",
            hint="Lower the learning rate with --lr, choose --optimizer adagrad, or scale the data.",
        )


def _are_finite(values: Mapping[str, Any]) -> bool:
    return all(math.isfinite(value) for value in values.values())
