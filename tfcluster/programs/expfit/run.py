"""Train a small network on y = e^x in one or several modes, one after another, and report the loss curve."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfcluster.core.devices import without_replica
from tfcluster.core.programs import first_selected
from tfcluster.errors import ClusterError
from tfcluster.programs import settings
from tfcluster.programs.api import Context
from tfcluster.programs.expfit import PARAMETER_TASK
from tfcluster.programs.expfit.partitioning import Network, build, partition
from tfcluster.programs.sessions import open_session, run_and_count, task_of

_HIDDEN = 16  # neurons in the hidden layer
# Bounds of the x for which the network learns e^x.
_LOW, _HIGH = -1.0, 1.0


def run(context: Context, *, modes: Sequence[str], steps: int, rate: float, batch: int, seed: int) -> dict[str, Any]:
    """Learn e^x between -1 and 1 in one mode after another, all with the same batches and weights from the seed.

    Returns:
        With one mode: mode, loss (the mean squared error on the last batch), max_error (the largest error between
        -1 and 1), steps, seconds, steps_per_s, curve (at most 201 pairs of step and loss) and seed. With several modes:
        modes (a list of the same fields without seed) and seed.
    """
    results = []
    for number, mode in enumerate(modes):
        training = _Training(context, mode, rate, batch, seed)
        results.append(training.train(steps, before=number * steps, total=len(modes) * steps))
    return {**results[0], "seed": seed} if len(results) == 1 else {"modes": results, "seed": seed}


def parameter_device(context: Context) -> str | None:
    """Return the device of the cluster's parameter server or head task, or None if it has neither."""
    tasks = first_selected(PARAMETER_TASK, context.addresses)
    return f"{tasks[0].replace('/task', '/replica:0/task')}/device:CPU:0" if tasks else None


def stream_examples(seed: int, batch: int) -> Callable[[int], Any]:
    """Return a function of a number of steps that returns the x of the next batches, of shape [steps, batch].

    They depend on the seed alone, and neither on the numbers of steps nor on how the work is partitioned.
    """
    generator = np.random.default_rng([seed, 1])
    return lambda steps: generator.uniform(_LOW, _HIGH, (steps, batch))


def initial_layers(seed: int) -> list[Any]:
    """Return the initial weights of both layers, which depend on the seed alone and not on the partitioning.

    The shapes are [1 + 1, 16] and [16 + 1, 1]; the last row of each is the bias.
    """
    generator = np.random.default_rng([seed, 0])
    hidden = generator.normal(size=(2, _HIDDEN))
    output = generator.normal(size=(_HIDDEN + 1, 1)) / np.sqrt(_HIDDEN)
    return [hidden, output]


def largest_error(layers: list[Any]) -> float:
    """Return the largest absolute error of the network with respect to e^x, between -1 and 1."""
    x = np.linspace(_LOW, _HIGH, 1001)[:, np.newaxis]
    hidden, output = layers
    outputs = np.tanh(x @ hidden[:-1] + hidden[-1]) @ output[:-1] + output[-1]
    return float(np.abs(outputs - np.exp(x)).max())


class _Training:
    def __init__(self, context: Context, mode: str, rate: float, batch: int, seed: int) -> None:
        self._context = context
        self._mode = mode
        self._rate = rate
        self._batch = batch
        self._seed = seed
        self._partitioning = partition(mode, context.devices, parameter_device(context), batch)
        self._note_unused_devices()

    def train(self, steps: int, before: int, total: int) -> dict[str, Any]:
        """Train, after `before` of all `total` steps; return the result that `run` describes, without seed."""
        network = build(self._context, self._partitioning, initial_layers(self._seed), self._rate)
        next_examples = stream_examples(self._seed, self._batch)
        stride = -(-steps // settings.TRAINING_CURVE_POINTS)
        curve: list[list[float]] = []
        done, size = 0, settings.TRAINING_FIRST_STEPS
        with open_session(self._context, network.graph, self._partitioning.devices) as session:
            session.run(network.initializer)
            began = time.monotonic()
            while done < steps:
                size = max(1, min(size, steps - done, settings.TRAINING_CALL_EXAMPLES_MAX // self._batch))
                started = time.monotonic()
                losses = self._call(session, network, next_examples(size), count=done == 0)
                seconds = max(time.monotonic() - started, 1e-6)
                self._check_finite(losses, done)
                numbered = enumerate(losses.tolist(), done + 1)
                curve += [[at, loss] for at, loss in numbered if (at - 1) % stride == 0 or at == steps]
                done, taken = done + size, size
                size = min(4 * size, int(size * settings.TRAINING_CALL_SECONDS / seconds) + 1)
                rate = round(taken / seconds, 1)
                self._context.emit("metric", mode=self._mode, step=done, loss=float(losses[-1]), steps_per_s=rate)
                self._context.progress(before + done, total, "steps")
            seconds = time.monotonic() - began
            layers = session.run(network.layers)
        with np.errstate(all="ignore"):
            max_error = largest_error(layers)
        # The loss is computed before the step's update, so check the result of the last update too.
        self._check_finite(np.array([max_error]), steps - 1)
        return {
            "mode": self._mode,
            "loss": curve[-1][1],
            "max_error": max_error,
            "steps": steps,
            "seconds": round(seconds, 6),
            "steps_per_s": round(steps / seconds, 1),
            "curve": curve,
        }

    def _call(self, session: Any, network: Network, batches: Any, *, count: bool) -> Any:
        """Run the steps on batches, of shape [steps, batch], and return their losses; `count` counts the operations."""
        feed = {network.steps: len(batches)}
        for share, placeholder in zip(self._partitioning.shares, network.examples, strict=True):
            feed[placeholder] = batches[:, share.start : share.stop]
            self._count(share.device, examples=len(batches) * (share.stop - share.start))
        if not count:
            return session.run(network.losses, feed)
        losses, counts = run_and_count(session.run, network.losses, feed)
        for device, operations in counts.items():
            self._count(device, ops=operations)
        return losses

    def _count(self, device: str, **amounts: int) -> None:
        stats = self._context.device_stats.setdefault(without_replica(device), {"ops": 0, "examples": 0})
        for name, amount in amounts.items():
            stats[name] += amount

    def _check_finite(self, losses: Any, before: int) -> None:
        non_finite = np.flatnonzero(~np.isfinite(losses))
        if non_finite.size:
            raise ClusterError(
                f"the loss is not finite at step {before + int(non_finite[0]) + 1} ({self._mode}): "
                f"the learning rate {self._rate:g} is too high",
                hint=f"Try --lr {min(self._rate / 10, 0.05):g}.",
            )

    def _note_unused_devices(self) -> None:
        partitioning, devices = self._partitioning, self._context.devices
        if self._mode == "model-parallel" and len({task_of(device) for device in partitioning.devices}) == 1:
            self._context.notes.append("model-parallel: there is only one task, so both layers are on it")
        unused = len(devices) - len({share.device for share in partitioning.shares})
        if self._mode == "data-parallel" and unused:
            self._context.notes.append(
                f"data-parallel: a batch of {self._batch} leaves nothing to {unused} of {len(devices)} devices"
            )
