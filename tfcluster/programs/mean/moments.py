"""Moments of numbers (count, mean, sum of squared deviations), and their combination from those of parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """The moments of some numbers.

    Attributes:
        count: How many numbers there are.
        mean: Their mean; NaN if there are no numbers.
        squares: The sum of their squared deviations from the mean.
    """

    count: int
    mean: float
    squares: float

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
