"""The dataset of a training, and its batches: synthetic points around a line, or those of the user's CSV file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfcluster.errors import ClusterError, usage_error
from tfcluster.programs import settings
from tfcluster.programs.csv_rows import find_numbers, parse_number, read_rows

_SLOPE, _INTERCEPT, _NOISE = 2.0, 0.2, 0.4
_POINTS = 101
_SHUFFLE_ROUNDS = 4
_HINT = "Give --data a CSV file with the columns x and y, or leave it out."


@dataclass(frozen=True)
class Dataset:
    """Points in the plane."""

    x: np.ndarray[Any, np.dtype[np.float64]]  # [n]
    y: np.ndarray[Any, np.dtype[np.float64]]  # [n]

    def __len__(self) -> int:
        return len(self.x)

    def loss(self, w: float, b: float) -> float:
        """Return the mean squared error of the line w x + b."""
        return float(np.mean((w * self.x + b - self.y) ** 2))

    def least_squares(self) -> dict[str, float] | None:
        """Return w and b of the line with the smallest loss, in closed form; None if several have it (equal x)."""
        x = self.x - self.x.mean()
        spread = float(x @ x)
        if spread == 0:
            return None
        w = float(x @ self.y) / spread
        return {"w": w, "b": float(self.y.mean() - w * self.x.mean())}


@dataclass(frozen=True)
class Batches:
    """The batches of a training, which iterate over all points in another random order in each epoch."""

    points: Dataset
    size: int  # examples per batch, at most the number of points
    seed: int  # for the order of the examples, below 2^63

    @property
    def is_whole(self) -> bool:
        """Return whether each batch has all points, in their own order."""
        return self.size == len(self.points)

    def split(self, devices: int) -> list[tuple[int, int]]:
        """Return the begin and end of each device's share of a batch; the sizes differ by at most one."""
        return list(pairwise(self.size * number // devices for number in range(devices + 1)))

    def rows(self, step: Any, begin: int, end: int) -> Any:
        """Return the rows of the data at the positions `begin` … `end - 1` of a step's batch, as an int64 tensor."""
        rows = len(self.points)
        position = step * self.size + begin + tf.range(end - begin, dtype=tf.int64)
        # A batch has fewer examples than the data has rows, so it ends in the epoch in which it begins or in the next.
        epoch = position[0] // rows
        return tf.raw_ops.RandomIndexShuffle(
            index=position % rows,
            seed=tf.gather(tf.stack([self._key(epoch), self._key(epoch + 1)]), position // rows - epoch),
            max_index=tf.constant(rows - 1, tf.int64),
            rounds=_SHUFFLE_ROUNDS,
        )

    def _key(self, epoch: Any) -> Any:
        """Return three random uint32 values. RandomIndexShuffle uses only their lowest bits."""
        seed = tf.stack([tf.constant(self.seed, tf.int64), epoch])
        return tf.random.stateless_uniform([3], seed, None, None, tf.uint32)


def synthetic_dataset(seed: int) -> Dataset:
    """Return 101 points on [-1, 1] around y = 2x + 0.2, with normal noise of standard deviation 0.4."""
    x = np.linspace(-1.0, 1.0, _POINTS)
    noise = np.random.default_rng(seed).standard_normal(_POINTS)
    return Dataset(x, _SLOPE * x + _INTERCEPT + _NOISE * noise)


def read_csv(path: Path, name: str) -> Dataset:
    """Return the points in the columns x and y of a CSV file, or in the first two if no header names x and y."""
    columns: tuple[int, int] | None = None
    values: list[tuple[float, float]] = []
    for position, row in read_rows(path, name, _HINT):
        if columns is None:
            columns, is_header = _find_columns(position, row)
            if is_header:
                continue
        values.append(_parse_row(position, row, columns))
        if len(values) > settings.TRAINING_POINTS_MAX:
            raise _usage_error(f"{position}: more than {settings.TRAINING_POINTS_MAX:,} points")
    if not values:
        raise _usage_error(f"{name}: no points in it")
    x, y = np.array(values, dtype=np.float64).T
    return Dataset(np.ascontiguousarray(x), np.ascontiguousarray(y))


def _find_columns(position: str, row: list[str]) -> tuple[tuple[int, int], bool]:
    """Find the columns x and y in the first row; return their indices, and whether the row is a header."""
    names = [cell.strip().lower() for cell in row]
    if "x" in names and "y" in names:
        return (names.index("x"), names.index("y")), True
    if len(row) < 2:
        raise _usage_error(f"{position}: expected the two columns x and y, found one column")
    return (0, 1), not any(find_numbers(row))


def _parse_row(position: str, row: list[str], columns: tuple[int, int]) -> tuple[float, float]:
    x, y = (_parse_finite(position, row, column) for column in columns)
    return x, y


def _parse_finite(position: str, row: list[str], column: int) -> float:
    number = parse_number(row[column])
    if number is None or not math.isfinite(number):
        raise _usage_error(f"{position}: {row[column].strip()!r} in column {column + 1} is not a finite number")
    return number


def _usage_error(message: str) -> ClusterError:
    return usage_error(message, _HINT)
