"""Monte Carlo estimate of pi: count random points inside the quarter circle, in shards that any device can compute."""

from __future__ import annotations

import math
import time
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import tfcluster

if TYPE_CHECKING:
    import click
    from rich.text import Text

# Smallest and largest number of points in a shard, as powers of two. Dispatching a shard costs as much as 200,000
# points, so few large shards are best. However, a device that gets only one shard is idle while others finish theirs.
# The memory of a step does not grow with the size of a shard, because the compiler fuses generation, test and count.
_SMALLEST_SHARD, _LARGEST_SHARD, _SHARDS_PER_DEVICE = 16, 24, 4
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


def run(samples: int, seed: int) -> None:
    """Estimate pi; `samples` is at most 2^54, and `seed`, the key of the generator, below 2^64.

    Its result has pi, stderr (its standard error), interval (Wilson's 95 % interval), samples, inside (the number of
    points inside the quarter circle), samples_per_s and seed.
    """
    devices = tfcluster.devices(at_most=max(_FEW_DEVICES, samples // _POINTS_PER_DEVICE))
    size = shard_size(samples, len(devices))
    began = time.monotonic()
    inside = tfcluster.map_reduce(
        partial(count_inside, samples, size, seed),
        shards=-(-samples // size),
        devices=devices,
        unit="samples",
        work=lambda shards: min(shards * size, samples),
        optimized=False,
    )
    seconds = time.monotonic() - began
    rate = round(samples / seconds)
    tfcluster.result({**estimate(int(inside), samples), "samples_per_s": rate, "seed": seed})


def shard_size(samples: int, devices: int) -> int:
    """Return the points in a shard: a power of two that gives each device several; the result does not depend on it."""
    exponent = (samples // (_SHARDS_PER_DEVICE * devices)).bit_length() - 1
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
    import tensorflow as tf

    from tfcluster.programs.threefry import threefry_2x32

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
    import tensorflow as tf

    upper = tf.bitwise.right_shift(bits, tf.constant(32 - _COORDINATE_BITS, tf.uint32))
    # Convert through int32, for which the conversion is a single vector instruction.
    return tf.cast(tf.cast(upper, tf.int32), tf.float64)


def count_inside(samples: int, size: int, seed: int, shard: Any) -> Any:
    """Return the number of points inside among those of a shard of `size` points; the last one has fewer."""
    import tensorflow as tf

    start = shard * size
    points = tf.cast(tf.minimum(samples - start, size), tf.int32)
    high, low = (tf.cast(word, tf.uint32) for word in (start // 2**32, start % 2**32))
    key_low, key_high = (tf.constant(word, tf.uint32) for word in (seed & 0xFFFFFFFF, seed >> 32))
    return counter_of(size)(key_low, key_high, high, low, points)


def command() -> click.Command:
    """Return the command with the options of the program, whose values are the parameters of `run`."""
    import click

    from tfcluster.cli.options import WholeNumber, drawn_seed_option

    @click.command(
        short_help="Pi from random points, counted on all devices.",
        epilog="Example: tfcluster run pi --samples 1e9 --seed 7 --devices '/job:worker/task:*'",
    )
    @click.option(
        "--samples",
        type=WholeNumber(1, 2**54),
        default="1e7",
        show_default=True,
        metavar="N",
        help="How many points to make.",
    )
    @drawn_seed_option
    def main(samples: int, seed: int) -> None:
        """Estimate pi by counting random points inside the quarter circle, on the tasks' devices.

        The count depends on the seed and the number of points alone, not on the devices that share the work. Few points
        are counted on some of the devices only, unless --devices or --gpus asks for more.
        """
        run(samples, seed)

    return main


def summary(result: dict[str, Any], seconds: float) -> list[Text]:
    """Format the result: the estimate with its standard error and interval, and the number of samples."""
    from tfcluster.ui.console import Text
    from tfcluster.ui.format import format_duration, format_rate

    low, high = result["interval"]
    digits = max(2, _digits(result["stderr"]))
    return [
        Text.assemble(
            ("pi = ", "bold"),
            (f"{result['pi']:.{digits}f}", "bold green"),
            f" ± {result['stderr']:.{digits}f} (standard error), 95% interval {low:.{digits}f} to {high:.{digits}f}",
        ),
        Text(
            f"{result['inside']:,} of {result['samples']:,} random points in the unit square are inside "
            "the quarter circle"
        ),
        Text(f"{format_duration(seconds)}, {format_rate(result['samples_per_s'], 'samples')}, seed {result['seed']}"),
    ]


def _digits(error: float) -> int:
    """Return the number of decimal places to show of a value: one more than the first digit of its standard error."""
    return -math.floor(math.log10(error)) + 1 if error > 0 else 6


if __name__ == "__main__":
    command()()
