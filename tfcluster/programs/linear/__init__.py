"""A line fitted by workers that train at once, its parameters on the parameter servers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.context import Context
from tfcluster.programs.linear.checkpoints import Checkpoints, Summaries
from tfcluster.programs.linear.evaluator import Evaluator
from tfcluster.programs.linear.ledger import Ledger
from tfcluster.programs.linear.model import StateGraph
from tfcluster.programs.linear.parameters import Parameters, Values
from tfcluster.programs.linear.plan import LEARNING_RATES, Plan
from tfcluster.programs.linear.points import MOST_ROWS, made, read_csv
from tfcluster.programs.linear.replica import Replica
from tfcluster.programs.linear.roles import assign, names
from tfcluster.programs.linear.team import Team

# How much of the training a parameter server that is lost may cost.
_SNAPSHOT_SECONDS = 1.0
# A thread that is in a call to a server which hangs is left to the end of the driver.
_JOIN_SECONDS = 10.0


def run(
    context: Context,
    *,
    data: str,
    steps: int,
    epochs: int | None,
    batch: int,
    optimizer: str,
    lr: float | None,
    sync: bool,
    logdir: str | None,
    checkpoint_every: float,
    seed: int,
) -> dict[str, Any]:
    """Fit the line.

    Args:
        context: The run.
        data: The user's name of the CSV file that was sent, which has columns x and y. Where none was sent
            there are 101 points around 2x + 0.2, from the seed.
        steps: How many steps all workers do together.
        epochs: How often to go through the data, in place of `steps`.
        batch: Examples a step; all there are, if these are fewer. With `sync` the workers share them.
        optimizer: A name of `LEARNING_RATES`.
        lr: Learning rate; None for the optimizer's own.
        sync: Whether the workers' gradients are averaged at each step.
        logdir: Folder for checkpoints and summaries, and to go on from; None for neither.
        checkpoint_every: Seconds between two checkpoints.
        seed: Of the noise and the order of the examples, below 2^63.

    Returns:
        w, b, loss (on all data), steps (the global step), steps_per_s, examples_per_s, workers, optimizer, lr, batch,
        sync, seed, resumed_from (the step of the checkpoint, or None), least_squares (w and b in closed form),
        evaluations ([step, loss] of the evaluator).

    Raises:
        ClusterError: The data or the folder cannot be used, the training diverged, or tasks were lost for good.
    """
    points = made(seed) if context.sent is None else read_csv(context.sent, data)
    roles = assign(context.addresses, context.head, context.devices)
    rate = LEARNING_RATES[optimizer] if lr is None else lr
    plan = Plan(context, roles, points, optimizer, rate, min(batch, len(points)), seed)
    if sync and plan.batch < len(points):
        _refuse_too_many(len(points), len(roles.replicas))
    if epochs is not None:
        steps = -(-epochs * len(points) // plan.batch)
    state = StateGraph(plan)
    checkpoints = Checkpoints(logdir) if logdir else None
    values = checkpoints.latest(list(state.values)) if checkpoints else None
    resumed_from = None if values is None else int(values["global_step"])
    if resumed_from is not None:
        context.notes.append(f"went on from the checkpoint of step {resumed_from:,} in {logdir}")

    # Between-graph training has a worker for each device. Workers in step are one loop, which all devices share.
    crew = {"all workers": list(roles.replicas)} if sync else {name: [each] for each, name in names(roles).items()}
    ledger = Ledger(resumed_from or 0, steps, len(crew))
    with contextlib.ExitStack() as stack:
        summaries = stack.enter_context(contextlib.closing(Summaries(logdir))) if logdir else None
        team = Team(plan, ledger, Parameters(plan, state, ledger), len(crew), summaries)
        meeting = threading.Barrier(len(crew))
        threads: list[threading.Thread] = [Replica(team, name, used, meeting) for name, used in crew.items()]
        evaluator = Evaluator(team, roles.evaluator) if roles.evaluator else None
        if evaluator is not None:
            threads.append(evaluator)
        final = _train(team, threads, values, checkpoints, checkpoint_every)
    w, b = float(final["w"]), float(final["b"])
    return {
        "w": w,
        "b": b,
        "loss": points.loss(w, b),
        "steps": int(final["global_step"]),
        "steps_per_s": round(team.steps / team.seconds, 1),
        "examples_per_s": round(team.steps * plan.batch / team.seconds),
        "workers": len(roles.replicas),
        "optimizer": optimizer,
        "lr": rate,
        "batch": plan.batch,
        "sync": sync,
        "seed": seed,
        "resumed_from": resumed_from,
        "least_squares": points.least_squares(),
        "evaluations": evaluator.scores if evaluator else [],
    }


def _refuse_too_many(rows: int, devices: int) -> None:
    """Raise ClusterError when the graph of workers in step, each of which has all points, would be too large."""
    if rows * devices > MOST_ROWS:
        raise ClusterError(
            f"{rows:,} points for each of {devices} devices in step are more than {MOST_ROWS:,} in all",
            hint="Leave out --sync, choose fewer --devices, or a --batch of all points, which are divided then.",
            exit_code=ExitCode.USAGE,
        )


def _train(
    team: Team,
    threads: Sequence[threading.Thread],
    values: Values | None,
    checkpoints: Checkpoints | None,
    checkpoint_every: float,
) -> Values:
    """Give the variables their first values, have the threads train, and return what the variables are then.

    Raises:
        Exception: What ended the training before its time.
    """
    parameters = team.parameters
    for thread in threads:
        thread.start()  # they make their graphs while the variables are made
    try:
        parameters.initialise(values)
        team.initialised.set()
        _watch(team, checkpoints, checkpoint_every)
    except BaseException as end:
        if checkpoints is not None and parameters.snapshot and not isinstance(end, Exception):
            checkpoints.write(parameters.snapshot)  # the run is cancelled: the next may go on from here
        raise
    finally:
        team.stop()
    for thread in threads:
        thread.join(_JOIN_SECONDS)
    final = parameters.read()
    if checkpoints is not None:
        checkpoints.write(final)
    parameters.close()
    return final


def _watch(team: Team, checkpoints: Checkpoints | None, checkpoint_every: float) -> None:
    """Look after a training until it has ended: remember the parameters, write checkpoints.

    Raises:
        Exception: What ended it before its time.
    """
    written = time.monotonic()
    while not team.ended.wait(_SNAPSHOT_SECONDS):
        values = team.parameters.read()
        if checkpoints is not None and time.monotonic() - written >= checkpoint_every:
            checkpoints.write(values)
            written = time.monotonic()
    if team.error is not None:
        raise team.error
    if team.ledger.done < team.ledger.steps:
        raise ClusterError(
            f"no worker was left after {team.ledger.done:,} of {team.ledger.steps:,} steps: "
            + "; ".join(team.plan.context.notes),
            hint="`tfcluster status` shows the tasks, `tfcluster events` what happened to them.",
        )
