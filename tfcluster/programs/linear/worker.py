"""A worker of a training: a driver thread with its own session, which reconnects when the worker's server is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcluster import settings
from tfcluster.programs.linear.config import refuse_divergence
from tfcluster.programs.linear.coordinator import TrainingCoordinator
from tfcluster.programs.linear.model import TrainingGraph
from tfcluster.programs.linear.parameter_client import LOSSES, answers, check_all_listening
from tfcluster.programs.linear.step_scheduler import StepRange
from tfcluster.programs.scheduler import next_size
from tfcluster.programs.sessions import close, count_operations, leak, open_session, short_task

v1 = tf.compat.v1


class Worker(threading.Thread):
    """A thread that trains on its devices, block by block, until no steps are left.

    Args:
        team: The shared state of the training.
        name: The worker's name for the user.
        devices: One device, or all devices with synchronous training. The first device's task is the session's master.
        began: The barrier at which all workers wait before their first step.
    """

    def __init__(self, team: TrainingCoordinator, name: str, devices: Sequence[str], began: threading.Barrier) -> None:
        super().__init__(name=name, daemon=True)  # a cancelled run does not wait for a step in progress
        self._team = team
        self._devices = list(devices)
        self._began = began
        self._graph: TrainingGraph | None = None
        self._session: Any = None
        self._failures = 0  # consecutive failures since the last finished block

    def run(self) -> None:
        """Train. An error stops the whole training."""
        try:
            if self._prepare():
                with contextlib.suppress(threading.BrokenBarrierError):
                    self._began.wait(settings.WORKER_START_SECONDS)
                self._team.begin()
                self._train()
        except Exception as error:  # carried to the main thread, which raises it
            self._team.fail(error)
        finally:
            self._team.leave()  # before closing, which may block for as long as a server hangs
            self._close()

    def _prepare(self) -> bool:
        """Open the session and have the servers prepare the loop by running zero steps.

        Returns:
            False if the worker is lost or the training has been stopped.
        """
        self._graph = self._build()
        self._team.initialised.wait()
        if self._team.stopped:
            return False
        try:
            self._open()
            metadata = v1.RunMetadata()
            self._steps(StepRange(0, 0), v1.RunOptions(output_partition_graphs=True), metadata)
            self._team.count_operations(count_operations(metadata))
        except LOSSES as error:
            return self._recover(error)
        return True

    def _train(self) -> None:
        size = settings.TRAINING_FIRST_STEPS
        while (block := self._team.ledger.take(size)) is not None:
            began = time.monotonic()
            try:
                found = self._steps(block)
            except LOSSES as error:
                self._team.ledger.requeue(block)
                self._failures += 1
                if self._failures >= settings.WORKER_FAILURES_MAX:
                    leak(self._session)
                    self._session = None
                    self._team.note(f"{self.name}: failed {self._failures} times in a row: {_told(error)}")
                    return
                if not self._recover(error):
                    return
                # The worker may only have been slow, because a step of a large batch takes seconds: try fewer steps.
                size = max(1, min(settings.TRAINING_FIRST_STEPS, block.count // 2))
                continue
            self._team.ledger.finish(block)
            self._failures = 0
            refuse_divergence(int(found["step"]), {name: found[name] for name in ("w", "b", "loss")})
            seconds = time.monotonic() - began
            self._team.record(self.name, self._devices, block.count, seconds, found)
            size = next_size(block.count, block.count, seconds, settings.TRAINING_CALL_SECONDS)

    def _steps(self, block: StepRange, options: Any = None, metadata: Any = None) -> dict[str, Any]:
        assert self._graph is not None, "a replica prepares before it trains"
        feed = {self._graph.first: block.first, self._graph.count: block.count}
        found: dict[str, Any] = self._session.run(self._graph.results, feed, options, metadata)
        return found

    def _recover(self, error: Exception) -> bool:
        """Retry with new sessions until one works.

        Args:
            error: The error by which the worker was lost.

        Returns:
            False if the worker does not recover or the training ends first.
        """
        lost_at = time.monotonic()
        deadline: float | None = None
        is_extended = False
        while not self._team.stopped:
            leak(self._session)
            self._session = None
            self._team.parameters.restore_what_is_lost()
            # The timeout starts when the parameter servers are up, because a worker cannot recover without them.
            deadline = deadline or time.monotonic() + settings.PARAMETER_RECOVERY_SECONDS
            try:
                self._open()
                self._steps(StepRange(0, 0))
            except LOSSES as again:
                if time.monotonic() < deadline:
                    time.sleep(settings.PARAMETER_RETRY_SECONDS)
                elif silent := [each for each in self._devices if not answers(self._team.plan.context, each)]:
                    if not self._go_on_without(silent, again):
                        return False
                    deadline = None
                elif not is_extended:  # all devices respond, so the worker has only just recovered: extend once
                    deadline, is_extended = None, True
                else:
                    self._team.note(f"{self.name}: answers, but cannot train: {_told(again)}")
                    return False
                continue
            self._team.note(f"{self.name}: lost for {time.monotonic() - lost_at:.1f} s ({_kind(error)}), then went on")
            return True
        self._team.note(f"{self.name}: lost ({_kind(error)}) and not back when the training ended")
        return False

    def _go_on_without(self, silent: Sequence[str], error: Exception) -> bool:
        """Continue without the devices whose tasks do not respond.

        Args:
            silent: The devices to leave out.
            error: The error of the last attempt.

        Returns:
            False if no device is left.
        """
        for device in silent:
            self._team.note(
                f"{short_task(device)}: lost ({_kind(error)}) and not back within "
                f"{settings.PARAMETER_RECOVERY_SECONDS:.0f} s; the training went on without it"
            )
        self._devices = [device for device in self._devices if device not in silent]
        if not self._devices:
            return False
        self._graph = self._build()
        return True

    def _build(self) -> TrainingGraph:
        return TrainingGraph(self._team.plan, self._devices)

    def _open(self) -> None:
        assert self._graph is not None, "a replica prepares before it trains"
        used = [*self._devices, *self._team.plan.servers]
        check_all_listening(self._team.plan.context, used)
        self._session = open_session(
            self._team.plan.context, self._graph.graph, used, timeout_ms=settings.PARAMETER_CALL_TIMEOUT_MS
        )

    def _close(self) -> None:
        close(self._session)
        self._session = None


def _kind(error: Exception) -> str:
    """Return the name of the error's class, as TensorFlow calls it."""
    return type(error).__name__


def _told(error: Exception) -> str:
    """Return the error's class and the first line that describes it; skip lines in which TensorFlow names a task."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("From /job:")]
    return f"{_kind(error)}: {lines[0]}" if lines else _kind(error)
