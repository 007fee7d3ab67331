"""Monte Carlo estimate of pi: count random points inside the quarter circle, in shards that any device can compute."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import tensorflow as tf

from tfcluster.programs import settings
from tfcluster.programs.api import Context
from tfcluster.programs.map_reduce import Computation, Progress, SessionPool, map_shards
from tfcluster.programs.sessions import joins
from tfcluster.programs.threefry import threefry_2x32

# Smallest and largest number of points in a shard, as powers of two. Dispatching a shard costs as much as 200,000
# points, so few large shards are best. However, a device that gets only one shard is idle while others finish theirs.
# The memory of a step does not grow with the size of a shard, because the compiler fuses generation, test and count.
_SMALLEST_SHARD, _LARGEST_SHARD = 16, 24
# Up to this number of devices are always used; more only if each has at least this number of points, whose computation
# takes about as long as the start on a device.
_FEW_DEVICES, _POINTS_PER_DEVICE = 8, 1 << 26
# Number of points that the loop over a shard of the largest size generates at once. Each round of the generator waits
# for the previous one, and the rounds of other points fill this time. The function takes longer to compile, so smaller
# shards generate one point at a time.
_POINTS_AT_ONCE = 4

# Coordinates have 24 bits, as a float32 has. Their squares and the sum of these are exact in float64, so rounding does
# not differ between devices (with or without fused multiply-add) and the count is the same on all of them.
_COORDINATE_BITS = 24
_NORMAL_95 = 1.959963984540054


def run(context: Context, *, samples: int, seed: int, every_device: bool = False) -> dict[str, Any]:
    """Estimate pi; `samples` is at most 2^54, and `seed`, the key of the generator, below 2^64.

    Returns:
        pi, stderr (its standard error), interval (Wilson's 95 % interval), samples, inside (the number of points
        inside the quarter circle), samples_per_s, seed.
    """
    every = [*context.devices, *context.late_devices]
    used = every if every_device else worthwhile_devices(samples, every)
    size = shard_size(samples, len(used))
    shards = -(-samples // size)
    devices = [device for device in used if device in context.devices][:shards]
    late = [device for device in used if device in context.late_devices]
    inside = 0
    with SessionPool(context, [*devices, *late], partial(_build_counter, size), optimized=False) as on:

        def count(device: str, first: int, shards: int) -> int:
            """Return the number of points inside in the shards `first` … `first + shards - 1`."""
            key = (seed & 0xFFFFFFFF, seed >> 32)
            return int(on.run(device, {"first": first, "count": shards, "samples": samples, "key": key}))

        progress = Progress(context, samples, "samples")
        began = time.monotonic()
        for part in map_shards(devices, shards, count, late=late, joins=partial(joins, context)):
            inside += part.value
            points = min((part.first + part.count) * size, samples) - part.first * size
            progress.add(part.device, points)
        seconds = time.monotonic() - began
    return {**estimate(inside, samples), "samples_per_s": round(samples / seconds), "seed": seed}


def worthwhile_devices(samples: int, devices: Sequence[str]) -> Sequence[str]:
    """Return as many devices as have enough points to count, evenly spread over the tasks and hosts.

    A session and the compilation of the function cost each device as much CPU time as many points.
    """
    count = min(len(devices), max(_FEW_DEVICES, samples // _POINTS_PER_DEVICE))
    return [devices[number * len(devices) // count] for number in range(count)]


def shard_size(samples: int, devices: int) -> int:
    """Return the points in a shard: a power of two that gives each device several; the result does not depend on it."""
    exponent = (samples // (settings.MAP_SHARDS_PER_DEVICE * devices)).bit_length() - 1
    return 1 << min(_LARGEST_SHARD, max(_SMALLEST_SHARD, exponent))


def estimate(inside: int, samples: int) -> dict[str, Any]:
    """Estimate pi from a count, with its standard error and 95 % interval.

    The interval is Wilson's (1927), which is also valid if there are few points and all or none of them are inside.
    """
    share = inside / samples
    square = _NORMAL_95**2
    centre = (share + square / (2 * samples)) / (1 + square / samples)
    half = _NORMAL_95 * math.sqrt(share * (1 - share) / samples + square / (4 * samples**2)) / (1 + square / samples)
    return {
        "pi": 4 * share,
        "stderr": 4 * math.sqrt(share * (1 - share) / samples),
        "interval": [4 * (centre - half), 4 * (centre + half)],
        "samples": samples,
        "inside": inside,
    }


@cache
def counter_of(size: int) -> Any:
    """Return a compiled function that counts the points inside among the first points of a shard of `size` points.

    Its arguments are scalars: the key's low and high word, the high and low word of the number of the shard's first
    point (all uint32; that number is a multiple of `size`), and the number of points to test (int32). It returns an
    int64. Point n is generated from the counter (n modulo 2^32, n divided by 2^32).
    """

    at_once = _POINTS_AT_ONCE if size == 1 << _LARGEST_SHARD else 1
    part = size // at_once
    # A separate function is traced once, and not for each point. The compiler inlines it.
    random_bits = threefry_2x32 if at_once == 1 else tf.function(threefry_2x32, autograph=False)

    def count_inside(key_low: Any, key_high: Any, high: Any, low: Any, points: Any) -> Any:
        inside = tf.constant(0, tf.int32)
        for first in range(0, size, part):
            index = tf.range(first, first + part, dtype=tf.int32)
            counter = (tf.cast(index, tf.uint32) + low, tf.fill([part], high))
            x, y = (_coordinate(bits) for bits in random_bits((key_low, key_high), counter))
            is_inside = x * x + y * y <= 2.0 ** (2 * _COORDINATE_BITS)
            inside += tf.cast(is_inside & (index < points), tf.int32)
        return tf.cast(tf.reduce_sum(inside), tf.int64)

    # A server caches a compiled function by name, for the sessions of all later runs. If two functions had the same
    # name and arguments of the same shapes, it would run the first for both.
    count_inside.__name__ = f"pi_count_inside_{size}"
    return tf.function(count_inside, jit_compile=True, autograph=False)


def _coordinate(bits: Any) -> Any:
    """Return the upper bits of uint32 values as float64 values in [0, 2^24)."""
    upper = tf.bitwise.right_shift(bits, tf.constant(32 - _COORDINATE_BITS, tf.uint32))
    # Convert through int32, for which the conversion is a single vector instruction.
    return tf.cast(tf.cast(upper, tf.int32), tf.float64)


def _build_counter(size: int) -> Computation:
    """Build the computation that counts the points inside in a range of shards of `size` points, as a while loop."""
    v1 = tf.compat.v1
    count_inside = counter_of(size)
    first, count, samples = (v1.placeholder(tf.int64, []) for _ in range(3))
    key = v1.placeholder(tf.uint32, [2])

    def count_shard(shard: Any, inside: Any) -> tuple[Any, Any]:
        start = shard * size
        points = tf.cast(tf.minimum(samples - start, size), tf.int32)
        high, low = (tf.cast(word, tf.uint32) for word in (start // 2**32, start % 2**32))
        return shard + 1, inside + count_inside(key[0], key[1], high, low, points)

    # The loop is outside the compiled function, because inside it the compiler does not vectorize the code.
    _, inside = v1.while_loop(
        lambda shard, _: shard < first + count,
        count_shard,
        [first, tf.constant(0, tf.int64)],
        parallel_iterations=1,
    )
    return Computation({"first": first, "count": count, "samples": samples, "key": key}, inside)
