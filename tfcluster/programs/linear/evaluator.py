"""Evaluate the current parameters on a separate task while the workers train."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from tfcluster import settings
from tfcluster.programs.linear.config import is_finite
from tfcluster.programs.linear.coordinator import TrainingCoordinator
from tfcluster.programs.linear.model import ScoringGraph
from tfcluster.programs.linear.parameter_client import check_all_listening
from tfcluster.programs.sessions import close, leak, open_session, short_task


class Evaluator(threading.Thread):
    """A thread that computes the loss on all data twice a second, and once more when the training has ended.

    Args:
        team: The shared state of the training.
        device: Full name of the device that evaluates.

    Attributes:
        scores: [step, loss] of each evaluation, downsampled evenly when there are more than 2,000.
    """

    def __init__(self, team: TrainingCoordinator, device: str) -> None:
        super().__init__(name=short_task(device), daemon=True)
        self.scores: list[list[float]] = []
        self._team = team
        self._device = device
        self._error: Exception | None = None

    def run(self) -> None:
        """Evaluate until the training has ended. A lost task is retried at each evaluation."""
        team = self._team
        scoring = ScoringGraph(team.plan, self._device)
        team.initialised.wait()
        session = None
        ended = False
        while True:
            try:
                if session is None:
                    session = self._open(scoring)
                self._score(session.run(scoring.results))
                self._error = None
            except (tf.errors.OpError, ConnectionError) as error:
                leak(session)
                session, self._error = None, error
            if ended:
                break
            ended = team.ended.wait(settings.EVALUATION_INTERVAL_SECONDS)
        close(session)
        if self._error is not None:
            team.note(f"{self.name} does not answer ({type(self._error).__name__}): the last parameters have no score")

    def _open(self, scoring: ScoringGraph) -> Any:
        used = [self._device, *self._team.plan.servers]
        check_all_listening(self._team.plan.context, used)
        return open_session(self._team.plan.context, scoring.graph, used, timeout_ms=settings.PARAMETER_CALL_TIMEOUT_MS)

    def _score(self, found: dict[str, Any]) -> None:
        values = {name: float(found[name]) for name in ("loss", "w", "b")}
        if not is_finite(values):
            return  # the training reports its divergence itself
        step = int(found["step"])
        if len(self.scores) >= 2 * settings.EVALUATION_SCORES_MIN:
            del self.scores[::2]
        self.scores.append([step, values["loss"]])
        self._team.plan.context.emit(
            "metric", worker=self.name, step=step, **values, seconds=round(self._team.seconds, 6)
        )
        work = self._team.plan.context.stats_of(self._device)
        work["scores"] = len(self.scores)
