"""The chief's training loop: initialize variables, monitor workers, take snapshots, write checkpoints, shut down."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.programs.linear.checkpoints import Checkpoints
from tfcluster.programs.linear.config import is_finite, refuse_divergence
from tfcluster.programs.linear.coordinator import TrainingCoordinator
from tfcluster.programs.linear.parameter_client import ParameterClient, Values


def train(
    team: TrainingCoordinator,
    threads: Sequence[threading.Thread],
    values: Values | None,
    checkpoints: Checkpoints | None,
    checkpoint_every: float,
) -> Values:
    """Initialize the variables and run the threads until the training has ended.

    The sessions are closed in every case, because a server keeps the graph of a session that is not closed for as long
    as the server lives.

    Args:
        team: The shared state of the training.
        threads: The workers, and the evaluator if there is one.
        values: The initial values of a checkpoint; None for the variables' own initial values.
        checkpoints: Where to write checkpoints; None to write none.
        checkpoint_every: Seconds between two checkpoints.

    Returns:
        The variables' values after all steps.

    Raises:
        Exception: The error that ended the training early.
    """
    patience = settings.CANCELLED_JOIN_SECONDS
    for thread in threads:
        thread.start()  # threads build their graphs while the variables are initialized
    try:
        team.parameters.initialise(values)
        team.initialised.set()
        final = _watch(team, checkpoints, checkpoint_every)
        patience = settings.WORKER_JOIN_SECONDS
    except Exception:
        raise
    except BaseException:  # the run is cancelled; save a checkpoint so that the next run can resume
        team.stop()
        _join(threads, patience)
        if checkpoints is not None:
            _write_last(team.parameters, checkpoints)
        patience = 0.0
        raise
    finally:
        team.stop()
        _join(threads, patience)
        _within(settings.CANCELLED_CLOSE_SECONDS, team.parameters.close)
    if checkpoints is not None:
        checkpoints.write(final)
    return final


def _watch(team: TrainingCoordinator, checkpoints: Checkpoints | None, checkpoint_every: float) -> Values:
    """Monitor a training until it has ended, taking snapshots of the variables and writing checkpoints.

    Args:
        team: The shared state of the training.
        checkpoints: Where to write checkpoints; None to write none.
        checkpoint_every: Seconds between two checkpoints.

    Returns:
        The variables' values after all steps.

    Raises:
        Exception: The error that ended the training early.
    """
    written = time.monotonic()
    while True:
        team.news.wait(settings.SNAPSHOT_INTERVAL_SECONDS)
        team.news.clear()
        if team.error is not None:
            raise team.error
        is_empty, is_done, rollback_count = team.is_empty, team.ledger.is_done, team.ledger.rollback_count
        values = team.parameters.read()
        refuse_divergence(int(values["global_step"]), values)
        # Even the loss of a server after the last step costs steps. Workers therefore wait until the final values are
        # read, and the training continues if the read caused a rollback.
        if is_done and team.ledger.rollback_count == rollback_count:
            return values
        if is_empty:
            raise ClusterError(
                f"no worker was left after {team.ledger.done:,} of {team.ledger.steps:,} steps: "
                + "; ".join(team.plan.context.notes),
                hint="`tfcluster status` shows the tasks, `tfcluster events` what happened to them.",
            )
        if checkpoints is not None and time.monotonic() - written >= checkpoint_every:
            checkpoints.write(values)
            written = time.monotonic()


def _write_last(parameters: ParameterClient, checkpoints: Checkpoints) -> None:
    """Write a checkpoint of the current variables, or of the last snapshot if the servers do not respond in time."""
    _within(settings.CANCELLED_READ_SECONDS, parameters.read)
    if parameters.snapshot and is_finite(parameters.snapshot):
        checkpoints.write(parameters.snapshot)


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait for threads to exit, for at most `seconds` in total."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _within(seconds: float, action: Callable[[], Any]) -> None:
    """Run an action in a thread of its own, ignore its errors, and stop waiting for it after `seconds`.

    The action may fail, or hang because a server hangs.
    """

    def act() -> None:
        with contextlib.suppress(Exception):
            action()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
