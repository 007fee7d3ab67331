"""Cut a sequence of numbers into slices of any sizes and into windows at fixed positions, and combine their moments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tfcluster.errors import usage_error
from tfcluster.programs.mean.source import MappedFile

# Number of numbers in a window. Dispatching a window takes as long as computing some hundred thousand numbers, so large
# windows are best. Small inputs get small windows, which need less padding.
_LARGE, _SMALL = 1 << 22, 1 << 16
_NON_FINITE = (("NaN", np.isnan), ("infinity", np.isposinf), ("-infinity", np.isneginf))


def window_size(count: int) -> int:
    """Return the number of numbers in a window; as it depends on the input alone, so do the windows' sums."""
    return _LARGE if count >= _LARGE else _SMALL


def even_sizes(count: int, slices: int) -> list[int]:
    """Return the sizes of slices that differ by at most one; if there are fewer numbers, there is a slice for each."""
    slices = max(1, min(count, slices))
    return [count // slices + (index < count % slices) for index in range(slices)]


def check_sizes(sizes: Sequence[int], count: int, name: str) -> None:
    """Check that the slices add up to the input; `name` is the user's name for it."""
    if sum(sizes) != count:
        raise usage_error(
            f"the slices have {sum(sizes):,} numbers together, {name} has {count:,}",
            "Give --slices sizes that add up, or leave it out for equal ones.",
        )


@dataclass(frozen=True)
class WindowPieces:
    """Pieces of the sequence, each within one window, as arrays with one element per piece.

    The pieces of the slices come first, in the order of the numbers. After them come the windows that a slice's bound
    cuts, once more as a whole. The pieces that are whole windows (for the last window: all of its numbers) are
    therefore the same for any slices.
    """

    window: npt.NDArray[np.int64]  # number of the piece's window
    low: npt.NDArray[np.int64]  # position of the piece's first number in the window
    high: npt.NDArray[np.int64]  # position after the piece's last number in the window
    slices: tuple[range, ...]  # the pieces of each slice

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.counts)])

    def __len__(self) -> int:
        return len(self.window)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Return the number of numbers in each piece."""
        counts: npt.NDArray[np.int64] = self.high - self.low
        return counts

    def count_before(self, piece: int) -> int:
        """Return the number of numbers in those of the pieces before a piece that belong to a slice."""
        return int(self._ends[min(piece, self.slices[-1].stop)])

    def whole_windows(self, count: int, size: int) -> npt.NDArray[np.int64]:
        """Return the indices of the pieces that are whole windows (of `size` numbers), in the windows' order.

        Each number of the sequence, which has `count`, is in exactly one of them.
        """
        whole = (self.low == 0) & (self.high == np.minimum(size, count - self.window * size))
        indices = np.flatnonzero(whole)
        ordered: npt.NDArray[np.int64] = indices[np.argsort(self.window[indices], kind="stable")]
        return ordered


def cut(sizes: Sequence[int], size: int) -> WindowPieces:
    """Cut slices of at least one number each at the bounds of the windows, which have `size` numbers."""
    ends = np.cumsum(sizes, dtype=np.int64)
    bounds, count = ends[:-1], int(ends[-1])
    starts = np.union1d(np.arange(0, count, size, dtype=np.int64), bounds)
    window = starts // size
    whole = np.unique(bounds[bounds % size != 0] // size)
    firsts = np.searchsorted(starts, [0, *ends]).tolist()
    return WindowPieces(
        np.concatenate([window, whole]),
        np.concatenate([starts - window * size, np.zeros_like(whole)]),
        np.concatenate([np.append(starts[1:], count) - window * size, np.minimum(size, count - whole * size)]),
        tuple(range(first, end) for first, end in pairwise(firsts)),
    )


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


def describe_non_finite(numbers: MappedFile, total: Moments) -> list[str]:
    """Return notes for the user about why the mean or the variance of all numbers is not finite."""
    if math.isfinite(total.variance):
        return []
    counts: dict[str, int] = {}
    firsts: dict[str, int] = {}
    for start in range(0, numbers.count, _LARGE):
        values = numbers.read(start, start + _LARGE)
        for kind, is_kind in _NON_FINITE:
            if len(positions := np.flatnonzero(is_kind(values))):
                counts[kind] = counts.get(kind, 0) + len(positions)
                firsts.setdefault(kind, start + int(positions[0]))
    if not counts:
        value = "variance" if math.isfinite(total.mean) else "sum of the numbers"
        return [f"the {value} is larger than the largest float64 number"]
    return [
        f"{count:,} of the {total.count:,} numbers {'is' if count == 1 else 'are'} {kind}, "
        f"the first of them number {firsts[kind]:,} counted from 0: there is no finite mean"
        for kind, count in sorted(counts.items(), key=lambda item: firsts[item[0]])
    ]
