"""Combining moments and cutting slices, as functions: against exact arithmetic, for any sizes."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.errors import ClusterError
from tfcluster.programs.mean.windows import Moments, check_sizes, combine, cut, even_sizes, window_size

# None so small that its square is none.
NUMBER = st.floats(-1e6, 1e6).map(lambda number: number if abs(number) > 1e-100 else 0.0)
NUMBERS = st.lists(NUMBER, min_size=1, max_size=60)


def exact(numbers: list[float]) -> tuple[Fraction, Fraction]:
    """Mean and sum of squared deviations, without rounding."""
    values = [Fraction(number) for number in numbers]
    mean = sum(values, Fraction()) / len(values)
    return mean, sum(((value - mean) ** 2 for value in values), Fraction())


def moments(numbers: list[float]) -> Moments:
    mean, squares = exact(numbers)
    return Moments(len(numbers), float(mean), float(squares))


@settings(deadline=None, max_examples=300)
@given(numbers=NUMBERS, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_parts_of_any_sizes_make_the_whole(numbers: list[float], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(numbers)) for cut in cuts), len(numbers)]
    parts = [
        moments(numbers[low:high]) if low < high else Moments(0, math.nan, 0.0)
        for low, high in itertools.pairwise(bounds)
    ]
    whole, (mean, squares) = combine(parts), exact(numbers)
    scale = max(abs(number) for number in numbers)
    assert whole.count == len(numbers)
    assert abs(Fraction(whole.mean) - mean) <= 1e-15 * scale
    # The means are off by e, a few 1e-16 of the largest number; sum n_i (d_i + e)² is then off by 2e sum n_i |d_i|, at
    # most 2e sqrt(n S), and by n e².
    bound = 1e-14 * float(squares) + 2e-15 * scale * math.sqrt(len(numbers) * squares) + 1e-30 * scale**2 * len(numbers)
    assert abs(Fraction(whole.squares) - squares) <= bound
    random.Random(1).shuffle(parts)
    assert combine(parts) == whole, "the order does not show"


def test_slices_that_are_not_equal_are_weighted_and_no_numbers_have_no_mean() -> None:
    combined = combine([Moments(1, 10.0, 0.0), Moments(3, 2.0, 6.0)])
    assert combined == Moments(4, 4.0, 6.0 + 1 * 36.0 + 3 * 4.0)
    assert combined.variance == 13.5
    combined = combine([])
    assert combined.count == 0
    assert math.isnan(combined.mean)
    assert math.isnan(combined.variance)


@pytest.mark.parametrize(
    ("means", "expected"),
    [((math.inf, 1.0), math.inf), ((math.inf, -math.inf), math.nan), ((1.0, math.nan), math.nan)],
)
def test_non_finite_parts_make_a_non_finite_mean(means: tuple[float, float], expected: float) -> None:
    combined = combine([Moments(2, mean, math.nan) for mean in means]).mean
    assert combined == expected or (math.isnan(combined) and math.isnan(expected))


@pytest.mark.parametrize(
    ("count", "slices", "expected"),
    [(10, 3, [4, 3, 3]), (2, 8, [1, 1]), (1, 1, [1]), (7, 7, [1] * 7), (1009, 2, [505, 504])],
)
def test_even_sizes(count: int, slices: int, expected: list[int]) -> None:
    assert even_sizes(count, slices) == expected


def test_slices_that_do_not_add_up_are_rejected_and_small_inputs_have_small_windows() -> None:
    check_sizes([10, 30, 961], 1001, "a.npy")
    with pytest.raises(ClusterError, match=r"^the slices have 1,001 numbers together, a.npy has 1,000\n") as caught:
        check_sizes([10, 30, 961], 1000, "a.npy")
    assert caught.value.exit_code == 2
    assert [window_size(count) for count in (1, 2**22 - 1, 2**22, 2**40)] == [2**16, 2**16, 2**22, 2**22]


@settings(deadline=None, max_examples=300)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), size=st.integers(1, 40))
def test_pieces_make_their_slices_and_the_windows_do_not_depend_on_them(sizes: list[int], size: int) -> None:
    pieces, count = cut(sizes, size), sum(sizes)
    starts = [0, *itertools.accumulate(sizes)]
    for index, of in enumerate(pieces.slices):
        places = [
            place
            for piece in of
            for place in range(
                int(pieces.window[piece]) * size + int(pieces.low[piece]),
                int(pieces.window[piece]) * size + int(pieces.high[piece]),
            )
        ]
        assert places == list(range(starts[index], starts[index + 1]))
    assert (pieces.low >= 0).all()
    assert (pieces.high <= size).all()
    whole = pieces.whole_windows(count, size)
    assert pieces.window[whole].tolist() == list(range(-(-count // size)))
    assert int(pieces.counts[whole].sum()) == count
    cut_again = len(pieces) - sum(len(of) for of in pieces.slices)
    assert 0 <= cut_again <= len(sizes) - 1
    assert pieces.count_before(len(pieces)) == count, "a window that is cut counts once"
