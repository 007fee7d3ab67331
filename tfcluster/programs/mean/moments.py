"""Moments of numbers (count, mean, sum of squared deviations): those of pieces, also non-finite ones, and of parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfcluster.programs.mean.partition import WindowPieces
from tfcluster.programs.mean.source import MappedFile

_NON_FINITE = (("NaN", np.isnan), ("infinity", np.isposinf), ("-infinity", np.isneginf))


@dataclass(frozen=True)
class Moments:
    """The moments of some numbers."""

    count: int
    mean: float  # NaN if there are no numbers
    squares: float  # sum of the squared deviations from the mean

    @property
    def variance(self) -> float:
        """Return the variance of the population, or NaN if there are no numbers."""
        return self.squares / self.count if self.count else math.nan


def combine(parts: Sequence[Moments]) -> Moments:
    """Return the moments of the numbers of all parts together.

    The mean is the mean of the parts weighted by their counts, (n1 m1 + n2 m2 + …) / n. The squared deviations are the
    sum of those within the parts and of n_i (m_i - m)² between the parts: the formula of Chan, Golub and LeVeque (1979)
    for any number of parts. The sums are rounded once (math.fsum), so the result does not depend on the order of the
    parts.
    """
    parts = [part for part in parts if part.count]
    count = sum(part.count for part in parts)
    if not count:
        return Moments(0, math.nan, 0.0)
    mean = _sum([part.count * part.mean for part in parts]) / count
    if math.isinf(mean) and all(math.isfinite(part.mean) for part in parts):  # the sum overflows, the mean does not
        mean = _sum([part.mean * (part.count / count) for part in parts])
    between = [part.count * (part.mean - mean) * (part.mean - mean) for part in parts]
    return Moments(count, mean, _sum([*(part.squares for part in parts), *between]))


def _sum(values: Sequence[float]) -> float:
    """Return the sum, rounded once. If a value or the sum is not finite, follow IEEE 754."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def moments_of_pieces(pieces: WindowPieces, rows: npt.NDArray[np.float64]) -> list[Moments]:
    """Return the moments of each piece, computed from its pilot, sum and sum of squares; see window_sums.sums_of."""
    counts = pieces.counts
    with np.errstate(invalid="ignore", over="ignore"):
        shift = rows[:, 1] / counts
        squares = np.maximum(rows[:, 2] - rows[:, 1] * shift, 0.0)
        means = rows[:, 0] + shift
    return [Moments(*each) for each in zip(counts.tolist(), means.tolist(), squares.tolist(), strict=True)]


def recompute_non_finite(
    moments: list[Moments], numbers: MappedFile, pieces: WindowPieces, size: int, whole: npt.NDArray[np.int64]
) -> dict[str, tuple[int, int]]:
    """Recompute the moments that are not finite: those of non-finite numbers, and those whose sum overflows a float64.

    `moments` has those of each piece, and is changed in place. `size` is the number of numbers in a window. `whole` has
    the pieces that are whole windows; each number is in exactly one of them.

    Returns:
        How many of the numbers are NaN, infinity and -infinity, and the position of the first of them.
    """
    counts: dict[str, tuple[int, int]] = {}
    is_whole = set(whole.tolist())
    non_finite = [piece for piece, each in enumerate(moments) if not math.isfinite(each.mean + each.squares)]
    for piece in sorted(non_finite, key=lambda piece: int(pieces.window[piece])):
        start = int(pieces.window[piece]) * size
        values = numbers.read(start + int(pieces.low[piece]), start + int(pieces.high[piece])).astype(np.float64)
        moments[piece] = _moments_of(values)
        for kind, is_kind in _NON_FINITE if piece in is_whole else ():
            positions = np.flatnonzero(is_kind(values))
            if len(positions):
                count, first = counts.get(kind, (0, start + int(positions[0])))
                counts[kind] = (count + len(positions), first)
    return counts


def describe_non_finite(counts: dict[str, tuple[int, int]], total: Moments) -> list[str]:
    """Return notes for the user about non-finite numbers and results.

    `counts` is what `recompute_non_finite` returns, and `total` the moments of all numbers.
    """
    if not counts and not math.isfinite(total.variance):
        return ["the variance is larger than the largest float64 number"]
    return [
        f"{count:,} of the {total.count:,} numbers {'is' if count == 1 else 'are'} {kind}, "
        f"the first of them number {first:,} counted from 0: there is no finite mean"
        for kind, (count, first) in counts.items()
    ]


def _moments_of(values: npt.NDArray[np.float64]) -> Moments:
    """Return the moments of numbers that include non-finite ones, or whose sum or squares overflow."""
    count = len(values)
    if not np.isfinite(values).all():
        with np.errstate(invalid="ignore", over="ignore"):
            return Moments(count, float(values.sum()), math.nan)
    mean = math.fsum(values / count)
    with np.errstate(over="ignore"):
        return Moments(count, mean, float(np.square(values - mean).sum()))
