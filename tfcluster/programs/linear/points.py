"""What is fitted: points around a known line, or those of the user's CSV file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfcluster.errors import ClusterError, ExitCode

_SLOPE, _INTERCEPT, _NOISE = 2.0, 0.2, 0.4
_POINTS = 101
# The points travel inside the graph, 16 bytes each, and a graph is one message of at most 2 GiB.
_MOST_ROWS = 50_000_000


@dataclass(frozen=True)
class Points:
    """Points in the plane.

    Attributes:
        x: Their first coordinates, float64 [n].
        y: Their second.
    """

    x: np.ndarray[Any, np.dtype[np.float64]]
    y: np.ndarray[Any, np.dtype[np.float64]]

    def __len__(self) -> int:
        return len(self.x)

    def loss(self, w: float, b: float) -> float:
        """The mean squared error of the line w x + b."""
        return float(np.mean((w * self.x + b - self.y) ** 2))

    def least_squares(self) -> dict[str, float] | None:
        """The line of the smallest loss, in closed form; None where the x are all the same, which has many."""
        x = self.x - self.x.mean()
        spread = float(x @ x)
        if spread == 0:
            return None
        w = float(x @ self.y) / spread
        return {"w": w, "b": float(self.y.mean() - w * self.x.mean())}


def made(seed: int) -> Points:
    """101 points on [-1, 1] around y = 2x + 0.2, with normal noise of standard deviation 0.4."""
    x = np.linspace(-1.0, 1.0, _POINTS)
    noise = np.random.default_rng(seed).standard_normal(_POINTS)
    return Points(x, _SLOPE * x + _INTERCEPT + _NOISE * noise)


def read_csv(path: Path, name: str) -> Points:
    """The columns x and y of a CSV file; without a heading that names them, the first two.

    Args:
        path: Where it is.
        name: What the user calls it.

    Raises:
        ClusterError: The file cannot be read, a line cannot be understood, or there is no point in it.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _points(name, csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refusal(f"{name}: not a CSV file: {error}") from error


def _points(name: str, rows: Any) -> Points:
    columns: tuple[int, int] | None = None
    width = 0
    values: list[tuple[float, float]] = []
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        if columns is None:
            columns, heading = _columns(f"{name}:{rows.line_num}", row)
            width = len(row)
            if heading:
                continue
        if len(row) != width:
            raise _refusal(f"{name}:{rows.line_num}: {len(row)} columns where the first line has {width}")
        values.append(_numbers(f"{name}:{rows.line_num}", row, columns))
        if len(values) > _MOST_ROWS:
            raise _refusal(f"{name}:{rows.line_num}: more than {_MOST_ROWS:,} points")
    if not values:
        raise _refusal(f"{name}: no points in it")
    x, y = np.array(values, dtype=np.float64).T
    return Points(np.ascontiguousarray(x), np.ascontiguousarray(y))


def _columns(place: str, row: list[str]) -> tuple[tuple[int, int], bool]:
    """Which columns are x and y, and whether this first row is a heading."""
    names = [cell.strip().lower() for cell in row]
    if "x" in names and "y" in names:
        return (names.index("x"), names.index("y")), True
    if len(row) < 2:
        raise _refusal(f"{place}: one column, and x and y are two")
    return (0, 1), not any(_is_number(cell) for cell in row)


def _numbers(place: str, row: list[str], columns: tuple[int, int]) -> tuple[float, float]:
    for column in columns:
        if not _is_number(row[column]):
            raise _refusal(f"{place}: {row[column].strip()!r} in column {column + 1} is not a finite number")
    return float(row[columns[0]]), float(row[columns[1]])


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _refusal(message: str) -> ClusterError:
    return ClusterError(
        message,
        hint="Give --data a CSV file with the columns x and y, or leave it out.",
        exit_code=ExitCode.USAGE,
    )
