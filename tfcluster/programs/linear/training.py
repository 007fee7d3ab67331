"""A training from its first step to its last, as the run's chief sees it: begun, looked after, and ended in order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.programs.linear.checkpoints import Checkpoints
from tfcluster.programs.linear.checks import is_finite, refuse_divergence
from tfcluster.programs.linear.coordinator import TrainingCoordinator
from tfcluster.programs.linear.parameter_client import ParameterClient, Values

# How much of the training a parameter server that is lost may cost.
_SNAPSHOT_SECONDS = 1.0
# A thread that is in a call to a server which hangs is left to the end of the driver.
_JOIN_SECONDS = 10.0
# A run that is cancelled has 3 s in all: for blocks under way, for a last look and its checkpoint, to close sessions.
_LEAVE_SECONDS = 1.0
_LAST_READ_SECONDS = 0.5
_CLOSE_SECONDS = 0.5


def train(
    team: TrainingCoordinator,
    threads: Sequence[threading.Thread],
    values: Values | None,
    checkpoints: Checkpoints | None,
    checkpoint_every: float,
) -> Values:
    """Give the variables their first values, have the threads train, and return what the variables are then.

    However it ends, the sessions are closed: a server keeps the graph of one that is not for all its life.

    Args:
        team: What the threads share.
        threads: Workers, and the evaluator.
        values: The first values; None for the variables' own.
        checkpoints: Where to write them; None for nowhere.
        checkpoint_every: Seconds between two.

    Raises:
        Exception: What ended the training before its time.
    """
    patience = _LEAVE_SECONDS
    for thread in threads:
        thread.start()  # they make their graphs while the variables are made
    try:
        team.parameters.initialise(values)
        team.initialised.set()
        final = _watch(team, checkpoints, checkpoint_every)
        patience = _JOIN_SECONDS
    except Exception:
        raise
    except BaseException:  # the run is cancelled: the next may go on from here
        team.stop()
        _join(threads, patience)
        if checkpoints is not None:
            _write_last(team.parameters, checkpoints)
        patience = 0.0
        raise
    finally:
        team.stop()
        _join(threads, patience)
        _within(_CLOSE_SECONDS, team.parameters.close)
    if checkpoints is not None:
        checkpoints.write(final)
    return final


def _watch(team: TrainingCoordinator, checkpoints: Checkpoints | None, checkpoint_every: float) -> Values:
    """Look after a training until it has ended: remember the parameters, write checkpoints.

    Returns:
        The variables' values after all steps.

    Raises:
        Exception: What ended it before its time.
    """
    written = time.monotonic()
    while True:
        team.news.wait(_SNAPSHOT_SECONDS)
        team.news.clear()
        if team.error is not None:
            raise team.error
        is_empty, is_done, rollback_count = team.is_empty, team.ledger.is_done, team.ledger.rollback_count
        values = team.parameters.read()
        refuse_divergence(int(values["global_step"]), values)
        # A server that is lost even now costs steps; workers stay until the values are here.
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
    """Write a checkpoint of the parameters as they are; as they were last read, where the servers are slow."""
    _within(_LAST_READ_SECONDS, parameters.read)
    if parameters.snapshot and is_finite(parameters.snapshot):
        checkpoints.write(parameters.snapshot)


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait for the end of threads, for so long in all."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _within(seconds: float, action: Callable[[], Any]) -> None:
    """Do something that may fail, or hang with a server: then it is left alone."""

    def act() -> None:
        with contextlib.suppress(Exception):
            action()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
