"""Count, mean and sum of squared deviations of numbers, and how those of parts make those of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """What is known of some numbers.

    Attributes:
        count: How many they are.
        mean: Their mean; not a number where there are none.
        squares: The sum of their squared deviations from the mean.
    """

    count: int
    mean: float
    squares: float

    @property
    def variance(self) -> float:
        """The population's variance; not a number where there are no numbers."""
        return self.squares / self.count if self.count else math.nan


def combine(parts: Sequence[Moments]) -> Moments:
    """The moments of all parts' numbers together.

    The mean is the parts' weighted by their counts, (n1 m1 + n2 m2 + …) / n. The squared deviations are those within
    the parts and n_i (m_i - m)² between them: the formula of Chan, Golub and LeVeque (1979) for any number of
    parts. The sums are rounded once (math.fsum), so the order of the parts does not show in the result.
    """
    parts = [part for part in parts if part.count]
    count = sum(part.count for part in parts)
    if not count:
        return Moments(0, math.nan, 0.0)
    mean = _sum([part.count * part.mean for part in parts]) / count
    if math.isinf(mean) and all(math.isfinite(part.mean) for part in parts):  # the sum is too large, the mean is not
        mean = _sum([part.mean * (part.count / count) for part in parts])
    between = [part.count * (part.mean - mean) * (part.mean - mean) for part in parts]
    return Moments(count, mean, _sum([*(part.squares for part in parts), *between]))


def _sum(values: Sequence[float]) -> float:
    """The sum, rounded once; as IEEE 754 has it where values or the sum are not finite."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)
