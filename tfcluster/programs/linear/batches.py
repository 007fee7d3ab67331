"""The batches of a training: the rows of each step's batch, and each device's share of it, as TensorFlow operations."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import tensorflow as tf

from tfcluster.programs.linear.config import TrainingConfig
from tfcluster.programs.linear.roles import cpu_of

v1 = tf.compat.v1

_SHUFFLE_ROUNDS = 4


class BatchShare:
    """One device's share of each batch: the positions `begin` … `end - 1`."""

    def __init__(self, plan: TrainingConfig, device: str, begin: int, end: int) -> None:
        self._plan = plan
        self._device = device
        self._begin, self._size = begin, end - begin
        self._whole = plan.batch == len(plan.points)
        part = slice(begin, end) if self._whole else slice(None)
        with v1.device(device):
            self._x, self._y = tf.constant(plan.points.x[part]), tf.constant(plan.points.y[part])

    def differentiate(self, step: Any, w: Any, b: Any) -> tuple[Any, Any]:
        """Return the share's contribution to the batch's loss and to its gradient.

        Args:
            step: The number of the step, which determines the rows of the batch.
            w: The slope.
            b: The intercept.

        Returns:
            The loss, and its derivatives with respect to w and b as float64 [2].
        """
        with v1.device(self._device):
            x, y = self._x, self._y
            if not self._whole:
                task = tf.DeviceSpec.from_string(self._device)
                with v1.device(cpu_of(task.job, task.task)):  # RandomIndexShuffle has no GPU kernel
                    rows = rows_of(self._plan, step, self._begin, self._size)
                x, y = tf.gather(x, rows), tf.gather(y, rows)
            error = w * x + b - y
            slope, intercept = tf.reduce_sum(2 * error * x), tf.reduce_sum(2 * error)
            batch = self._plan.batch
            return tf.reduce_sum(error * error) / batch, tf.stack([slope, intercept]) / batch


def rows_of(plan: TrainingConfig, step: Any, begin: int, size: int) -> Any:
    """Return the rows of the data at the positions `begin` … `begin + size - 1` of a step's batch.

    Batches iterate over all rows, then over all rows in another random order (a shuffle per epoch).

    Args:
        plan: The settings of the training.
        step: The number of the step.
        begin: First position in the batch.
        size: Number of positions.

    Returns:
        The row numbers, int64 [size].
    """
    rows = len(plan.points)
    place = step * plan.batch + begin + tf.range(size, dtype=tf.int64)
    # A batch has fewer examples than the data has rows, so it ends in the epoch in which it begins or in the next.
    epoch = place[0] // rows
    key = tf.stack([_random_words(plan.seed, epoch), _random_words(plan.seed, epoch + 1)])
    return tf.raw_ops.RandomIndexShuffle(
        index=place % rows,
        seed=tf.gather(key, place // rows - epoch),
        max_index=tf.constant(rows - 1, tf.int64),
        rounds=_SHUFFLE_ROUNDS,
    )


def _random_words(seed: int, number: Any) -> Any:
    """Return three random uint32 values. RandomIndexShuffle uses only their lowest bits."""
    return tf.random.stateless_uniform([3], tf.stack([tf.constant(seed, tf.int64), number]), None, None, tf.uint32)


def split_batch(batch: int, devices: int) -> list[tuple[int, int]]:
    """Split a batch into one share per device, with sizes that differ by at most one.

    Args:
        batch: Examples in a batch.
        devices: Number of devices.

    Returns:
        The first position of each share, and the position after its last.
    """
    bounds = [batch * number // devices for number in range(devices + 1)]
    return list(pairwise(bounds))
