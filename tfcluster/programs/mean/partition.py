"""Cutting a sequence of numbers into slices of any sizes, and these into windows at fixed places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfcluster.errors import ClusterError, ExitCode

#: Of no slice: a window that slices cut, looked at once more as a whole.
WHOLE = -1

# Numbers in a window. The dispatch of one takes as long as some hundred thousand numbers, so large ones are best;
# small inputs get small ones, which are padded less.
_LARGE, _SMALL = 1 << 22, 1 << 16


def window_size(count: int) -> int:
    """How many numbers a window has: a function of the input alone, as are the sums of each window then."""
    return _LARGE if count >= _LARGE else _SMALL


def even_sizes(count: int, slices: int) -> list[int]:
    """So many slices of sizes that differ by one at most; fewer, of one number each, where there are fewer numbers."""
    slices = max(1, min(count, slices))
    return [count // slices + (index < count % slices) for index in range(slices)]


def check_sizes(sizes: Sequence[int], count: int, name: str) -> None:
    """Refuse slices that are not the whole of `name`, which has `count` numbers.

    Raises:
        ClusterError: They are not.
    """
    if sum(sizes) != count:
        raise ClusterError(
            f"the slices have {sum(sizes):,} numbers together, {name} has {count:,}",
            hint="Give --slices sizes that add up, or leave it out for equal ones.",
            exit_code=ExitCode.USAGE,
        )


@dataclass(frozen=True)
class WindowPieces:
    """Pieces of the sequence, each within one window; as arrays that have an element for each piece.

    Attributes:
        window: The number of its window.
        low: Its first number's place in the window.
        high: The place behind its last number.
        slice: The slice that it is of, or WHOLE.
        slices: The pieces of each slice, as a range.
    """

    window: npt.NDArray[np.int64]
    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    slice: npt.NDArray[np.int64]
    slices: tuple[range, ...]

    def __len__(self) -> int:
        return len(self.window)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many numbers each piece has."""
        counts: npt.NDArray[np.int64] = self.high - self.low
        return counts

    def count_of(self, first: int, count: int) -> int:
        """How many numbers the pieces `first` … `first + count - 1` have, of those that are of a slice."""
        some = np.s_[first : first + count]
        return int((self.high[some] - self.low[some])[self.slice[some] != WHOLE].sum())


def cut(sizes: Sequence[int], size: int) -> WindowPieces:
    """Cut slices at the windows' bounds.

    The windows do not depend on the slices: those that slices cut come once more as a whole, behind the slices' pieces.
    The pieces that are whole windows, or all that the last window has, are thus the same for any slices.

    Args:
        sizes: How many numbers each slice has, at least 1.
        size: How many numbers a window has.
    """
    count = sum(sizes)
    rows: list[npt.NDArray[Any]] = []
    slices = []
    start = pieces = 0
    for index, length in enumerate(sizes):
        windows = np.arange(start // size, (start + length - 1) // size + 1, dtype=np.int64)
        rows.append(_rows(windows, start, start + length, size, index))
        slices.append(range(pieces, pieces + len(windows)))
        start, pieces = start + length, pieces + len(windows)
    bounds = np.cumsum(sizes)[:-1]
    again = np.unique(bounds[bounds % size != 0] // size).astype(np.int64)
    rows.append(_rows(again, 0, count, size, WHOLE))
    window, low, high, of = np.concatenate(rows, axis=1)
    return WindowPieces(window, low, high, of, tuple(slices))


def whole_windows(pieces: WindowPieces, count: int, size: int) -> npt.NDArray[np.int64]:
    """Which pieces are whole windows, in the order of the windows: each number of the sequence is in one of them."""
    whole = (pieces.low == 0) & (pieces.high == np.minimum(size, count - pieces.window * size))
    found = np.flatnonzero(whole)
    ordered: npt.NDArray[np.int64] = found[np.argsort(pieces.window[found], kind="stable")]
    return ordered


def _rows(windows: npt.NDArray[np.int64], start: int, stop: int, size: int, index: int) -> npt.NDArray[np.int64]:
    low = np.maximum(start - windows * size, 0)
    high = np.minimum(stop - windows * size, size)
    return np.stack([windows, low, high, np.full_like(windows, index)])
