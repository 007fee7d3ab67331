"""Partition a sequence of numbers into slices of any sizes, and the slices into windows at fixed positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfcluster.errors import ClusterError, ExitCode

#: In place of a slice's index: a piece that belongs to no slice. It is a whole window that the slices cut, which is
#: evaluated once more as a whole.
WHOLE = -1

# Number of numbers in a window. Dispatching a window takes as long as computing some hundred thousand numbers, so large
# windows are best. Small inputs get small windows, which need less padding.
_LARGE, _SMALL = 1 << 22, 1 << 16


def window_size(count: int) -> int:
    """Return the number of numbers in a window.

    It depends on the input alone, so the sums of each window depend on the input alone too.
    """
    return _LARGE if count >= _LARGE else _SMALL


def even_sizes(count: int, slices: int) -> list[int]:
    """Return the sizes of slices that differ by at most one.

    If there are fewer numbers than slices, there is one slice per number.
    """
    slices = max(1, min(count, slices))
    return [count // slices + (index < count % slices) for index in range(slices)]


def check_sizes(sizes: Sequence[int], count: int, name: str) -> None:
    """Check that the slices add up to the input; `name` is the user's name for it."""
    if sum(sizes) != count:
        raise ClusterError(
            f"the slices have {sum(sizes):,} numbers together, {name} has {count:,}",
            hint="Give --slices sizes that add up, or leave it out for equal ones.",
            exit_code=ExitCode.USAGE,
        )


@dataclass(frozen=True)
class WindowPieces:
    """Pieces of the sequence, each within one window, as arrays with one element per piece."""

    window: npt.NDArray[np.int64]  # number of the piece's window
    low: npt.NDArray[np.int64]  # position of the piece's first number in the window
    high: npt.NDArray[np.int64]  # position after the piece's last number in the window
    slice: npt.NDArray[np.int64]  # index of the slice to which the piece belongs, or WHOLE
    slices: tuple[range, ...]  # the pieces of each slice

    def __len__(self) -> int:
        return len(self.window)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Return the number of numbers in each piece."""
        counts: npt.NDArray[np.int64] = self.high - self.low
        return counts

    def count_of(self, first: int, count: int) -> int:
        """Return the number of numbers in those of the pieces `first` … `first + count - 1` that belong to a slice."""
        selection = np.s_[first : first + count]
        return int((self.high[selection] - self.low[selection])[self.slice[selection] != WHOLE].sum())


def cut(sizes: Sequence[int], size: int) -> WindowPieces:
    """Cut slices into pieces at the bounds of the windows, which have `size` numbers.

    The windows do not depend on the slices. Windows that are cut by a slice's bound are added once more as a whole,
    after the pieces of the slices. The pieces that are whole windows (for the last window: all of its numbers) are
    therefore the same for any slices. A slice has at least one number.
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
    cut_windows = np.unique(bounds[bounds % size != 0] // size).astype(np.int64)
    rows.append(_rows(cut_windows, 0, count, size, WHOLE))
    window, low, high, index = np.concatenate(rows, axis=1)
    return WindowPieces(window, low, high, index, tuple(slices))


def whole_windows(pieces: WindowPieces, count: int, size: int) -> npt.NDArray[np.int64]:
    """Return the indices of the pieces that are whole windows, in the order of the windows.

    Each number of the sequence is in exactly one of them.
    """
    whole = (pieces.low == 0) & (pieces.high == np.minimum(size, count - pieces.window * size))
    indices = np.flatnonzero(whole)
    ordered: npt.NDArray[np.int64] = indices[np.argsort(pieces.window[indices], kind="stable")]
    return ordered


def _rows(windows: npt.NDArray[np.int64], start: int, stop: int, size: int, index: int) -> npt.NDArray[np.int64]:
    low = np.maximum(start - windows * size, 0)
    high = np.minimum(stop - windows * size, size)
    return np.stack([windows, low, high, np.full_like(windows, index)])
