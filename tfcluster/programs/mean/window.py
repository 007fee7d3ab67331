"""The sums of a piece of a window in one pass, compiled; and the graphs that put windows before it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf

from tfcluster.programs.map_reduce import Computation
from tfcluster.programs.mean.source import MappedFile, SameHostToken, tensor_type
from tfcluster.programs.threefry import threefry_2x32

# The numbers of so many stretches of a window are added side by side: one addition would wait for the one before.
_STRETCHES = 8
# And so many places of the stretches have sums of their own, which fills the vector registers.
_LANES = 1024
# The deviations are from a pilot, the mean of so small a part of the window. Its distance from the mean costs digits of
# the variance only where it is many standard deviations, and these many numbers bound it: n (mean - pilot)² is at
# most 64 times the sum of squared deviations.
_PILOT = 64


def mapped_windows(numbers: MappedFile, mark: SameHostToken, size: int) -> Computation:
    """The sums of any pieces of a file that the task maps, as rows in the order of `start`; and the mark as it sees it.

    The inputs are arrays with an element for each piece: `start`, the place of the window's first number; `low` and
    `high`, the piece's bounds in the window. A row has pilot, sum and sum of squares; see `sums_of`.
    """
    itemsize = numbers.values.dtype.itemsize
    skipped = numbers.skipped // itemsize
    dtype = tensor_type(numbers.dtype)
    with tf.device("/device:CPU:0"):
        # Maps the file whenever a step begins; reads nothing.
        shape = [skipped + numbers.count]
        whole = tf.raw_ops.ImmutableConst(dtype=dtype, shape=shape, memory_region_name=numbers.path)
        seen = tf.raw_ops.ImmutableConst(dtype=tf.uint8, shape=[len(mark.value)], memory_region_name=mark.path)

    def window(start: Any) -> tuple[Any]:
        with tf.device("/device:CPU:0"):
            return (tf.slice(whole, [skipped + start], [size]),)

    computation = _each(window, sums_of(dtype.name, size))
    return Computation(computation.inputs, (computation.outputs, seen))


def made_windows(size: int) -> Computation:
    """As `mapped_windows`, of numbers that the task makes of the input `key` (the seed's low and high word)."""
    key = tf.compat.v1.placeholder(tf.uint32, [2])

    def window(start: Any) -> tuple[Any, ...]:
        words = (tf.cast(word, tf.uint32) for word in (start // 2**32, start % 2**32))
        return (key[0], key[1], *words)

    return _each(window, sums_of_made(size)).with_input("key", key)


def fed_window(dtype: Any, size: int) -> Computation:
    """As `mapped_windows`, of one window, which is the input `values`."""
    values = tf.compat.v1.placeholder(dtype, [size])
    return _each(lambda start: (values,), sums_of(dtype.name, size)).with_input("values", values)


def _each(window: Callable[[Any], tuple[Any, ...]], sums: Any) -> Computation:
    v1 = tf.compat.v1
    start = v1.placeholder(tf.int64, [None])
    low, high = v1.placeholder(tf.int32, [None]), v1.placeholder(tf.int32, [None])
    size = tf.size(start)

    def look_at_piece(index: Any, rows: Any) -> tuple[Any, Any]:
        return index + 1, rows.write(index, sums(*window(start[index]), low[index], high[index]))

    # The loop stands outside the compiled function, as that of pi.
    rows = tf.TensorArray(tf.float64, size=size, element_shape=[3])
    _, rows = v1.while_loop(lambda index, _: index < size, look_at_piece, [0, rows], parallel_iterations=1)
    return Computation({"start": start, "low": low, "high": high}, rows.stack())


@cache
def sums_of(dtype: str, size: int) -> Any:
    """A compiled function of a window (`size` numbers of a type), and of the bounds of a piece in it (int32 scalars).

    It returns three float64 values: a pilot, near the piece's numbers; the sum of the deviations from it, and that
    of their squares.
    """

    def mean_sums(values: Any, low: Any, high: Any) -> Any:
        pilot = _pilot(lambda first, count: tf.slice(values, [first], [count]), size, low, high)
        return _sums(lambda first, count: values[first : first + count], size, pilot, low, high)

    # With all in its name that its body depends on: a server keeps what it compiled under the name.
    mean_sums.__name__ = f"mean_sums_{dtype}_{size}"
    return tf.function(mean_sums, jit_compile=True, autograph=False)


@cache
def sums_of_made(size: int) -> Any:
    """As `sums_of`, of numbers made of a key (two uint32 scalars) and the place of the window's first, a multiple of
    `size` (its high and low word).
    """

    def mean_sums(key_low: Any, key_high: Any, first_high: Any, first_low: Any, low: Any, high: Any) -> Any:
        def made(first: Any, count: int) -> Any:
            places = tf.cast(tf.range(count, dtype=tf.int32) + first, tf.uint32) + first_low
            return uniform(*threefry_2x32((key_low, key_high), (places, tf.fill([count], first_high))))

        return _sums(made, size, tf.constant(0.5, tf.float64), low, high)

    mean_sums.__name__ = f"mean_sums_made_{size}"
    return tf.function(mean_sums, jit_compile=True, autograph=False)


def uniform(high: Any, low: Any) -> Any:
    """Multiples of 2^-53 in [0, 1), as float64 values, of two words of random bits each."""
    upper = tf.bitwise.right_shift(high, tf.constant(5, tf.uint32))
    lower = tf.bitwise.right_shift(low, tf.constant(6, tf.uint32))
    # By way of int32, whose conversion is one vector instruction. No step rounds.
    upper, lower = (tf.cast(tf.cast(word, tf.int32), tf.float64) for word in (upper, lower))
    return (upper * 2.0**26 + lower) * 2.0**-53


def _pilot(part: Callable[[Any, int], Any], size: int, low: Any, high: Any) -> Any:
    """The mean of the piece's first numbers."""
    count = size // _PILOT
    first = tf.minimum(low, size - count)
    place = tf.range(count, dtype=tf.int32) + first
    zero = tf.zeros([], tf.float64)
    chosen = tf.where((place >= low) & (place < high), tf.cast(part(first, count), tf.float64), zero)
    return tf.reduce_sum(chosen) / tf.cast(tf.minimum(high - low, count), tf.float64)


def _sums(part: Callable[[int, int], Any], size: int, pilot: Any, low: Any, high: Any) -> Any:
    length = size // _STRETCHES
    zero = tf.zeros([], tf.float64)
    total = squares = zero
    for first in range(0, size, length):
        place = tf.range(first, first + length, dtype=tf.int32)
        deviation = tf.where((place >= low) & (place < high), tf.cast(part(first, length), tf.float64) - pilot, zero)
        total, squares = total + deviation, squares + deviation * deviation
    return tf.stack([pilot, _add_lanes(total), _add_lanes(squares)])


def _add_lanes(values: Any) -> Any:
    return tf.reduce_sum(tf.reduce_sum(tf.reshape(values, [-1, _LANES]), axis=0))
