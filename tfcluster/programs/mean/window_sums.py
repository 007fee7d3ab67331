"""Sum the pieces of windows on devices, which map a file, are fed its windows, or generate random numbers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfcluster.programs.api import Context
from tfcluster.programs.mean.source import MappedFile, RandomNumbers, SameHostToken
from tfcluster.programs.mean.windows import WindowPieces
from tfcluster.programs.session_pool import Computation, SessionPool
from tfcluster.programs.threefry import threefry_2x32

Rows = npt.NDArray[np.float64]

# Number of stretches of a window that are summed in parallel. In a single sum each addition would wait for the previous
# one.
_STRETCHES = 8
# Number of positions in the stretches that have separate sums (lanes), which fills the vector registers.
_LANES = 1024
# Deviations are computed from a pilot, the mean of the piece's first numbers, at most 1/64 of a window. The distance of
# the pilot from the mean costs digits of the variance only if it is many standard deviations. This fraction bounds the
# distance: n (mean - pilot)² is at most 64 times the sum of squared deviations.
_PILOT = 64


class PieceSums(contextlib.ExitStack):
    """Computes the sums of pieces on devices, which generate the numbers, map their file, or are fed its windows.

    A context manager. Here and below, `size` is the number of numbers in a window.
    """

    def __init__(
        self,
        context: Context,
        numbers: MappedFile | RandomNumbers,
        pieces: WindowPieces,
        size: int,
    ) -> None:
        super().__init__()
        self._context = context
        self._numbers = numbers
        self._size = size
        self._starts, self._low, self._high = pieces.window * size, pieces.low, pieces.high
        self._token = SameHostToken()
        self._lock = threading.Lock()
        self._feeding_pool: SessionPool | None = None
        self._fed_devices: set[str] = set()
        if isinstance(numbers, RandomNumbers):
            build = partial(generated_windows, size)
            self.pool = self.enter_context(SessionPool(context, build, optimized=False))
            return
        # The last window is moved back, so that it ends where the numbers end.
        self._starts = np.minimum(self._starts, max(0, numbers.count - size))
        offsets = pieces.window * size - self._starts
        self._low, self._high = pieces.low + offsets, pieces.high + offsets
        if numbers.can_be_mapped and numbers.count >= size:
            build = partial(mapped_windows, numbers, self._token, size)
            self.pool = self.enter_context(SessionPool(context, build, as_written=True))
        else:
            self.pool = self._feed_from_here()
            self._fed_devices.update(self.pool.devices)

    def compute(self, device: str, first: int, count: int) -> Rows:
        """Return the sums of the pieces `first` … `first + count - 1`, as rows; see `sums_of`."""
        span, rows = slice(first, first + count), None
        feed = {"start": self._starts[span], "low": self._low[span], "high": self._high[span]}
        if isinstance(self._numbers, RandomNumbers):
            key = (self._numbers.seed & 0xFFFFFFFF, self._numbers.seed >> 32)
            rows = self.pool.run(device, {**feed, "key": key})
        elif device not in self._fed_devices:
            rows = self._map(device, feed)
        if rows is None:
            self._fed_devices.add(device)
            rows = np.concatenate([self._feed(device, piece) for piece in range(first, first + count)])
        return rows

    def _map(self, device: str, feed: dict[str, Any]) -> Rows | None:
        """Compute the sums on a task that maps the file; return None if the task does not see this very file."""
        rows: Rows
        try:
            rows, token = self.pool.run(device, feed)
        except (tf.errors.NotFoundError, tf.errors.InternalError, tf.errors.PermissionDeniedError):
            # The task is on another machine: the path's process does not exist there, or its file is another one, which
            # is too short.
            return None
        return rows if token.tobytes() == self._token.value else None

    def _feed(self, device: str, piece: int) -> Rows:
        assert isinstance(self._numbers, MappedFile)
        pool = self._feed_from_here()
        start = int(self._starts[piece])
        values = self._numbers.read(start, min(start + self._size, self._numbers.count))
        padded = np.zeros(self._size, values.dtype)
        padded[: len(values)] = values
        feed = {"start": [0], "low": [self._low[piece]], "high": [self._high[piece]], "values": padded}
        rows: Rows = pool.run(device, feed)
        return rows

    def _feed_from_here(self) -> SessionPool:
        """Return the sessions to which this process sends the numbers; they are made when they are first needed."""
        assert isinstance(self._numbers, MappedFile)
        with self._lock:
            if self._feeding_pool is None:
                build = partial(fed_window, self._numbers.tensor_type, self._size)
                self._feeding_pool = self.enter_context(SessionPool(self._context, build, optimized=False))
            return self._feeding_pool


def mapped_windows(numbers: MappedFile, token: SameHostToken, size: int) -> Computation:
    """Build the computation of the sums of any pieces of a file that the task maps into its memory.

    The inputs are arrays with one element per piece: `start`, the position of the window's first number, and `low` and
    `high`, the piece's bounds in the window. The outputs are the rows (see `sums_of`), in the order of `start`, and the
    bytes of the token as the task reads them.
    """
    itemsize = numbers.values.dtype.itemsize
    skipped = numbers.skipped // itemsize
    dtype = numbers.tensor_type
    with tf.device("/device:CPU:0"):
        # ImmutableConst maps the file when a step begins, but reads nothing.
        shape = [skipped + numbers.count]
        whole = tf.raw_ops.ImmutableConst(dtype=dtype, shape=shape, memory_region_name=numbers.path)
        seen = tf.raw_ops.ImmutableConst(dtype=tf.uint8, shape=[len(token.value)], memory_region_name=token.path)

    def window(start: Any) -> tuple[Any]:
        with tf.device("/device:CPU:0"):
            return (tf.slice(whole, [skipped + start], [size]),)

    inputs, rows = _sum_each(window, sums_of(dtype.name, size))
    return inputs, (rows, seen)


def generated_windows(size: int) -> Computation:
    """Build the computation of the rows of any pieces of random numbers, which the task generates.

    The inputs are those of `mapped_windows` and `key`, the low and high word of the seed.
    """
    key = tf.compat.v1.placeholder(tf.uint32, [2])

    def window(start: Any) -> tuple[Any, ...]:
        words = (tf.cast(word, tf.uint32) for word in (start // 2**32, start % 2**32))
        return (key[0], key[1], *words)

    inputs, rows = _sum_each(window, sums_of_generated(size))
    return {**inputs, "key": key}, rows


def fed_window(dtype: Any, size: int) -> Computation:
    """Build the computation of the rows of a window's pieces.

    The inputs are those of `mapped_windows` and `values`, the numbers of the window.
    """
    values = tf.compat.v1.placeholder(dtype, [size])
    inputs, rows = _sum_each(lambda start: (values,), sums_of(dtype.name, size))
    return {**inputs, "values": values}, rows


def _sum_each(window: Callable[[Any], tuple[Any, ...]], sums: Any) -> tuple[dict[str, Any], Any]:
    v1 = tf.compat.v1
    start = v1.placeholder(tf.int64, [None])
    low, high = v1.placeholder(tf.int32, [None]), v1.placeholder(tf.int32, [None])
    size = tf.size(start)

    def sum_piece(index: Any, rows: Any) -> tuple[Any, Any]:
        return index + 1, rows.write(index, sums(*window(start[index]), low[index], high[index]))

    # The loop is outside the compiled function, as in map_reduce: inside it the compiler does not vectorize the code.
    rows = tf.TensorArray(tf.float64, size=size, element_shape=[3])
    _, rows = v1.while_loop(lambda index, _: index < size, sum_piece, [0, rows], parallel_iterations=1)
    return {"start": start, "low": low, "high": high}, rows.stack()


@cache
def sums_of(dtype: str, size: int) -> Any:
    """Return a compiled function of a window and the bounds of a piece in it (int32 scalars).

    It returns three float64 values: a pilot, which is near the piece's numbers, the sum of the deviations from the
    pilot, and the sum of the squares of these deviations.
    """

    def mean_sums(values: Any, low: Any, high: Any) -> Any:
        pilot = _pilot(lambda first, count: tf.slice(values, [first], [count]), size, low, high)
        return _sums(lambda first, count: values[first : first + count], size, pilot, low, high)

    # The name contains everything that the body depends on, because a server caches compiled functions by name.
    mean_sums.__name__ = f"mean_sums_{dtype}_{size}"
    return tf.function(mean_sums, jit_compile=True, autograph=False)


@cache
def sums_of_generated(size: int) -> Any:
    """Return a compiled function that does the same as that of `sums_of` for a window of random numbers.

    It takes the key (two uint32 scalars), the position of the window's first number, which is a multiple of `size` (its
    high and low word), and the bounds of a piece.
    """

    # A separate function is traced once, and not for each stretch. The compiler inlines it.
    random_numbers = tf.function(lambda key, counter: uniform(*threefry_2x32(key, counter)), autograph=False)

    def mean_sums(key_low: Any, key_high: Any, first_high: Any, first_low: Any, low: Any, high: Any) -> Any:
        def generate(first: Any, count: int) -> Any:
            positions = tf.cast(tf.range(count, dtype=tf.int32) + first, tf.uint32) + first_low
            return random_numbers((key_low, key_high), (positions, tf.fill([count], first_high)))

        return _sums(generate, size, tf.constant(0.5, tf.float64), low, high)

    mean_sums.__name__ = f"mean_sums_made_{size}"
    return tf.function(mean_sums, jit_compile=True, autograph=False)


def uniform(high: Any, low: Any) -> Any:
    """Convert pairs of words of random bits to float64 values, which are multiples of 2^-53 in [0, 1)."""
    upper = tf.bitwise.right_shift(high, tf.constant(5, tf.uint32))
    lower = tf.bitwise.right_shift(low, tf.constant(6, tf.uint32))
    # Convert through int32, for which the conversion is a single vector instruction. No operation rounds.
    upper, lower = (tf.cast(tf.cast(word, tf.int32), tf.float64) for word in (upper, lower))
    return (upper * 2.0**26 + lower) * 2.0**-53


def _pilot(part: Callable[[Any, int], Any], size: int, low: Any, high: Any) -> Any:
    """Return the mean of the piece's first numbers, at most 1/64 of a window."""
    count = size // _PILOT
    first = tf.minimum(low, size - count)
    position = tf.range(count, dtype=tf.int32) + first
    zero = tf.zeros([], tf.float64)
    chosen = tf.where((position >= low) & (position < high), tf.cast(part(first, count), tf.float64), zero)
    return tf.reduce_sum(chosen) / tf.cast(tf.minimum(high - low, count), tf.float64)


def _sums(part: Callable[[int, int], Any], size: int, pilot: Any, low: Any, high: Any) -> Any:
    length = size // _STRETCHES
    zero = tf.zeros([], tf.float64)
    total = squares = zero
    for first in range(0, size, length):
        position = tf.range(first, first + length, dtype=tf.int32)
        deviation = tf.where(
            (position >= low) & (position < high), tf.cast(part(first, length), tf.float64) - pilot, zero
        )
        total, squares = total + deviation, squares + deviation * deviation
    return tf.stack([pilot, _add_lanes(total), _add_lanes(squares)])


def _add_lanes(values: Any) -> Any:
    return tf.reduce_sum(tf.reduce_sum(tf.reshape(values, [-1, _LANES]), axis=0))
