"""The dataset of a training: synthetic points around a known line, or the points of the user's CSV file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.csv_rows import is_number, read_rows

_SLOPE, _INTERCEPT, _NOISE = 2.0, 0.2, 0.4
_POINTS = 101
_HINT = "Give --data a CSV file with the columns x and y, or leave it out."


@dataclass(frozen=True)
class Dataset:
    """Points in the plane.

    Attributes:
        x: The first coordinates, float64 [n].
        y: The second coordinates, float64 [n].
    """

    x: np.ndarray[Any, np.dtype[np.float64]]
    y: np.ndarray[Any, np.dtype[np.float64]]

    def __len__(self) -> int:
        return len(self.x)

    def loss(self, w: float, b: float) -> float:
        """Return the mean squared error of the line w x + b."""
        return float(np.mean((w * self.x + b - self.y) ** 2))

    def least_squares(self) -> dict[str, float] | None:
        """Return the line with the smallest loss, in closed form.

        Returns:
            w and b, or None if all x are equal, because many lines then have the smallest loss.
        """
        x = self.x - self.x.mean()
        spread = float(x @ x)
        if spread == 0:
            return None
        w = float(x @ self.y) / spread
        return {"w": w, "b": float(self.y.mean() - w * self.x.mean())}


def made(seed: int) -> Dataset:
    """Return 101 points on [-1, 1] around y = 2x + 0.2, with normal noise of standard deviation 0.4.

    Args:
        seed: Seed of the noise.
    """
    x = np.linspace(-1.0, 1.0, _POINTS)
    noise = np.random.default_rng(seed).standard_normal(_POINTS)
    return Dataset(x, _SLOPE * x + _INTERCEPT + _NOISE * noise)


def read_csv(path: Path, name: str) -> Dataset:
    """Return the points in the columns x and y of a CSV file, or in the first two if no header names x and y.

    Args:
        path: Path of the file.
        name: The user's name for the file.

    Raises:
        ClusterError: The file cannot be read, a line cannot be parsed, or the file has no points.
    """
    columns: tuple[int, int] | None = None
    values: list[tuple[float, float]] = []
    for where, row in read_rows(path, name, _HINT):
        if columns is None:
            columns, heading = _columns(where, row)
            if heading:
                continue
        values.append(_numbers(where, row, columns))
        if len(values) > settings.TRAINING_POINTS_MAX:
            raise _refusal(f"{where}: more than {settings.TRAINING_POINTS_MAX:,} points")
    if not values:
        raise _refusal(f"{name}: no points in it")
    x, y = np.array(values, dtype=np.float64).T
    return Dataset(np.ascontiguousarray(x), np.ascontiguousarray(y))


def _columns(place: str, row: list[str]) -> tuple[tuple[int, int], bool]:
    """Find the columns x and y in the first row.

    Returns:
        The indices of both columns, and whether the row is a header.
    """
    names = [cell.strip().lower() for cell in row]
    if "x" in names and "y" in names:
        return (names.index("x"), names.index("y")), True
    if len(row) < 2:
        raise _refusal(f"{place}: one column, and x and y are two")
    return (0, 1), not any(is_number(cell) for cell in row)


def _numbers(place: str, row: list[str], columns: tuple[int, int]) -> tuple[float, float]:
    for column in columns:
        if not (is_number(row[column]) and np.isfinite(float(row[column]))):
            raise _refusal(f"{place}: {row[column].strip()!r} in column {column + 1} is not a finite number")
    return float(row[columns[0]]), float(row[columns[1]])


def _refusal(message: str) -> ClusterError:
    return ClusterError(message, hint=_HINT, exit_code=ExitCode.USAGE)
