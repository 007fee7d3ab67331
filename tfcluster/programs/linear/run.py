"""Linear regression by distributed training: parallel workers fit a line whose parameters are on parameter servers."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np

from tfcluster.errors import usage_error
from tfcluster.programs import settings
from tfcluster.programs.api import Context
from tfcluster.programs.linear.checkpoints import LogFolder
from tfcluster.programs.linear.dataset import Batches, Dataset, read_csv, synthetic_dataset
from tfcluster.programs.linear.model import LEARNING_RATES, StateGraph, TrainingConfig, assign_roles
from tfcluster.programs.linear.servers import ParameterClient, Values
from tfcluster.programs.linear.training import Evaluator, Training, Worker, check_divergence


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
    seed: int | None,
) -> dict[str, Any]:
    """Fit the line; the arguments are the options of `tfcluster run linear`, whose help describes them.

    `data` is the user's name for the uploaded file, if any; see `synthetic_dataset`. `epochs` replaces `steps`. Without
    `lr`, the optimizer's default applies; without `seed`, below 2^63, that in `logdir`, or a random one.

    Returns:
        w, b, loss (on all data), steps (the global step), steps_per_s, examples_per_s, workers, optimizer, lr, batch,
        sync, seed, resumed_from (the step of the checkpoint, or None), least_squares (w and b in closed form),
        evaluations ([step, loss] of the evaluator).
    """
    log = LogFolder(logdir, checkpoint_every)
    seed = _choose_seed(context, seed, log)
    points = synthetic_dataset(seed) if context.upload_path is None else read_csv(context.upload_path, data)
    _check_overflow(points, data)
    roles = assign_roles(context.addresses, context.head_address, context.devices)
    rate = LEARNING_RATES[optimizer] if lr is None else lr
    batches = Batches(points, min(batch, len(points)), seed)
    if sync and not batches.is_whole:
        _check_graph_size(len(points), len(roles.replicas))
    if epochs is not None:
        steps = -(-epochs * len(points) // batches.size)
    config = TrainingConfig(context, roles, batches, optimizer, rate)
    with log:
        return _fit(config, steps, sync, logdir, log)


def _choose_seed(context: Context, seed: int | None, log: LogFolder) -> int:
    """Choose the seed: by default that of the training that is continued, which has the same data."""
    recorded = log.seed()
    if seed is not None and recorded not in (None, seed):
        context.notes.append(f"the checkpoint is of a training with --seed {recorded}, which had other data")
    if seed is None:
        seed = secrets.randbits(32) if recorded is None else recorded
    return seed


def _fit(config: TrainingConfig, steps: int, sync: bool, logdir: str | None, log: LogFolder) -> dict[str, Any]:
    """Train from the latest checkpoint, if there is one; return the result that `run` describes."""
    roles, batches = config.roles, config.batches
    state = StateGraph(config)
    values = log.latest(list(state.values))
    log.record_seed(batches.seed)  # not before the checkpoint is known to be one that this training continues
    resumed_from = None if values is None else int(values["global_step"])
    if resumed_from is not None:
        config.context.notes.append(f"resumed from the checkpoint of step {resumed_from:,} in {logdir}")
    # Asynchronous (between-graph) training has one worker per device. Synchronous training has a single worker, whose
    # loop uses all devices.
    devices = {"all workers": list(roles.replicas)}
    if not sync:
        devices = {name: [device] for device, name in roles.replica_names().items()}
    parameters = ParameterClient(config, state, values or {})
    workers = [Worker(config, name, used, parameters) for name, used in devices.items()]
    training = Training(config, parameters, workers, log)
    evaluators = [Evaluator(training, roles.evaluator)] if roles.evaluator else []
    final = training.run(resumed_from or 0, steps, evaluators)
    return {
        **_line(batches.points, final),
        "steps": int(final["global_step"]),
        "steps_per_s": round(training.steps_done / training.seconds, 1),
        "examples_per_s": round(training.steps_done * batches.size / training.seconds),
        "workers": len(roles.replicas),
        "optimizer": config.optimizer,
        "lr": config.rate,
        "batch": batches.size,
        "sync": sync,
        "seed": batches.seed,
        "resumed_from": resumed_from,
        "least_squares": batches.points.least_squares(),
        "evaluations": evaluators[0].scores if evaluators else [],
    }


def _check_overflow(points: Dataset, data: str) -> None:
    """Check that the squares of the points do not overflow a float64."""
    with np.errstate(all="ignore"):
        sums = [float(points.x @ points.x), points.loss(0.0, 0.0), *(points.least_squares() or {}).values()]
    if not all(map(math.isfinite, sums)):
        raise usage_error(f"{data}: the numbers are so large that their squares are infinite", "Scale the data.")


def _line(points: Dataset, final: Values) -> dict[str, float]:
    """Return the fitted line and its loss, or raise an error if one of these values is not finite."""
    w, b = float(final["w"]), float(final["b"])
    with np.errstate(all="ignore"):
        line = {"w": w, "b": b, "loss": points.loss(w, b)}
    check_divergence(int(final["global_step"]), line)
    return line


def _check_graph_size(rows: int, devices: int) -> None:
    """Check the size of the graph of a synchronous training, which holds all points once per device."""
    if rows * devices > settings.TRAINING_POINTS_MAX:
        raise usage_error(
            f"{rows:,} points for each of {devices} devices in step are more than "
            f"{settings.TRAINING_POINTS_MAX:,} in all",
            "Leave out --sync, choose fewer --devices, or a --batch of all points, which are divided then.",
        )
