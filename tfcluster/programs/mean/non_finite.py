"""Handle non-finite sums: locate NaN and infinities, and compute means of numbers whose sum overflows a float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tfcluster.programs.mean.evaluate import read_piece
from tfcluster.programs.mean.moments import Moments
from tfcluster.programs.mean.partition import WindowPieces
from tfcluster.programs.mean.source import MappedFile, RandomNumbers

_KINDS = (("NaN", np.isnan), ("infinity", np.isposinf), ("-infinity", np.isneginf))


class Irregular:
    """Recomputes the pieces whose sums are not finite, and counts the non-finite numbers in them.

    Args:
        numbers: The numbers of the input.
    """

    def __init__(self, numbers: MappedFile | RandomNumbers) -> None:
        self._numbers = numbers
        self._found: dict[str, tuple[int, int]] = {}

    def look_at(self, moments: list[Moments], pieces: WindowPieces, size: int, whole: npt.NDArray[np.int64]) -> None:
        """Recompute the moments that are not finite.

        Args:
            moments: The moments of each piece, which are changed in place.
            pieces: The pieces.
            size: Number of numbers in a window.
            whole: The pieces that are whole windows, in the order of the windows. Each number is in exactly one of
                them.
        """
        numbers = self._numbers
        if isinstance(numbers, RandomNumbers):
            return
        counted = set(whole.tolist())
        bad = [piece for piece, each in enumerate(moments) if not math.isfinite(each.mean + each.squares)]
        for piece in sorted(bad, key=lambda piece: int(pieces.window[piece])):
            values = read_piece(numbers, pieces, size, piece).astype(np.float64)
            moments[piece] = _moments(values)
            if piece in counted:
                self._count(values, int(pieces.window[piece]) * size)

    def notes(self, found: Moments) -> list[str]:
        """Return notes for the user about non-finite numbers and results.

        Args:
            found: The moments of all numbers.
        """
        notes = [
            f"{count:,} of the {found.count:,} numbers {'is' if count == 1 else 'are'} {kind}, "
            f"the first of them number {first:,} counted from 0: there is no finite mean"
            for kind, (count, first) in self._found.items()
        ]
        if not self._found and not math.isfinite(found.variance):
            notes.append("the variance is larger than the largest float64 number")
        return notes

    def _count(self, values: npt.NDArray[np.float64], start: int) -> None:
        for kind, is_one in _KINDS:
            places = np.flatnonzero(is_one(values))
            if len(places):
                count, first = self._found.get(kind, (0, start + int(places[0])))
                self._found[kind] = (count + len(places), first)


def _moments(values: npt.NDArray[Any]) -> Moments:
    """Return the moments of numbers that include non-finite ones, or whose sum or squares overflow."""
    count = len(values)
    if not np.isfinite(values).all():
        with np.errstate(invalid="ignore", over="ignore"):
            return Moments(count, float(values.sum()), math.nan)
    mean = math.fsum(values / count)
    with np.errstate(over="ignore"):
        return Moments(count, mean, float(np.square(values - mean).sum()))
