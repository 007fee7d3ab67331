"""Combining moments and cutting slices, as functions: against exact arithmetic, for any sizes."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.errors import ClusterError
from tfcluster.programs.mean import RandomNumbers, combine, cut, slice_sizes, window_size

# None so small that its square is none.
NUMBER = st.floats(-1e6, 1e6).map(lambda number: number if abs(number) > 1e-100 else 0.0)
NUMBERS = st.lists(NUMBER, min_size=1, max_size=60)

#: Count, mean and sum of squared deviations.
Moments = tuple[int, float, float]


def exact(numbers: list[float]) -> tuple[Fraction, Fraction]:
    """Mean and sum of squared deviations, without rounding."""
    values = [Fraction(number) for number in numbers]
    mean = sum(values, Fraction()) / len(values)
    return mean, sum(((value - mean) ** 2 for value in values), Fraction())


def moments(numbers: list[float]) -> Moments:
    mean, squares = exact(numbers)
    return len(numbers), float(mean), float(squares)


@settings(deadline=None, max_examples=300)
@given(numbers=NUMBERS, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_parts_of_any_sizes_make_the_whole(numbers: list[float], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(numbers)) for cut in cuts), len(numbers)]
    parts = [moments(numbers[low:high]) for low, high in itertools.pairwise(bounds) if low < high]
    whole, (mean, squares) = combine(np.array(parts)), exact(numbers)
    scale = max(abs(number) for number in numbers)
    assert whole[0] == len(numbers)
    assert abs(Fraction(whole[1]) - mean) <= 1e-15 * scale
    # The means are off by e, a few 1e-16 of the largest number; sum n_i (d_i + e)² is then off by 2e sum n_i |d_i|, at
    # most 2e sqrt(n S), and by n e².
    bound = 1e-14 * float(squares) + 2e-15 * scale * math.sqrt(len(numbers) * squares) + 1e-30 * scale**2 * len(numbers)
    assert abs(Fraction(whole[2]) - squares) <= bound
    random.Random(1).shuffle(parts)
    assert combine(np.array(parts)) == whole, "the order does not show"


def test_slices_that_are_not_equal_are_weighted() -> None:
    assert combine(np.array([(1, 10.0, 0.0), (3, 2.0, 6.0)])) == (4, 4.0, 6.0 + 1 * 36.0 + 3 * 4.0)


@pytest.mark.parametrize(
    ("means", "expected"),
    [((math.inf, 1.0), math.inf), ((math.inf, -math.inf), math.nan), ((1.0, math.nan), math.nan)],
)
def test_non_finite_parts_make_a_non_finite_mean(means: tuple[float, float], expected: float) -> None:
    combined = combine(np.array([(2, mean, math.nan) for mean in means]))[1]
    assert combined == expected or (math.isnan(combined) and math.isnan(expected))


@pytest.mark.parametrize(
    ("count", "slices", "expected"),
    [(10, 3, [4, 3, 3]), (2, 8, [1, 1]), (1, 1, [1]), (7, 7, [1] * 7), (1009, 2, [505, 504])],
)
def test_even_sizes(count: int, slices: int, expected: list[int]) -> None:
    assert slice_sizes("even", RandomNumbers(count, 0), slices) == expected


def test_slices_that_do_not_add_up_are_rejected_and_small_inputs_have_small_windows() -> None:
    assert slice_sizes([10, 30, 961], RandomNumbers(1001, 0), 4) == [10, 30, 961]
    message = r"^the slices have 1,001 numbers together, --random 1000 has 1,000\n"
    with pytest.raises(ClusterError, match=message) as caught:
        slice_sizes([10, 30, 961], RandomNumbers(1000, 0), 4)
    assert caught.value.exit_code == 2
    assert [window_size(count) for count in (1, 2**22 - 1, 2**22, 2**40)] == [2**16, 2**16, 2**22, 2**22]


@settings(deadline=None, max_examples=100)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), size=st.integers(1, 40))
def test_pieces_make_their_slices_and_the_windows_do_not_depend_on_them(sizes: list[int], size: int) -> None:
    pieces, count = cut(sizes, size), sum(sizes)
    bounds = [0, *itertools.accumulate(sizes)]
    for of, (begin, end) in zip(pieces.slices, itertools.pairwise(bounds), strict=True):
        starts, counts = pieces.starts[of].tolist(), pieces.counts[of].tolist()
        places = [place for start, each in zip(starts, counts, strict=True) for place in range(start, start + each)]
        assert places == list(range(begin, end))
    assert (pieces.counts > 0).all()
    assert (pieces.starts % size + pieces.counts <= size).all(), "each piece is in one window"
    assert pieces.starts[pieces.windows].tolist() == list(range(0, count, size))
    assert int(pieces.counts[pieces.windows].sum()) == count
    cut_again = len(pieces.starts) - pieces.slices[-1].stop
    assert 0 <= cut_again <= len(sizes) - 1
