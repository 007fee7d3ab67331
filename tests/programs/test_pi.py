"""Counting points against an independent NumPy generator, and pi and its interval in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfcluster.programs import pi, sessions
from tfcluster.programs.context import Context, current_run, set_current_run
from tfcluster.programs.pi import counter_of, estimate, shard_size
from tfcluster.programs.threefry import threefry_2x32

MASK = 0xFFFFFFFF
SHARD = 1 << 22


def numpy_count(seed: int, first: int, points: int) -> int:
    """The points inside among those numbered from `first` on, by Threefry-2x32-20 written once more, in NumPy."""
    keys = [seed & MASK, seed >> 32]
    keys.append(keys[0] ^ keys[1] ^ 0x1BD11BDA)
    x = np.arange(points, dtype=np.uint32) + np.uint32(first & MASK) + np.uint32(keys[0])
    y = np.full(points, first >> 32, np.uint32) + np.uint32(keys[1])
    for block in range(5):
        for rotation in (13, 15, 26, 6) if block % 2 == 0 else (17, 29, 16, 24):
            x += y
            y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
            y ^= x
        x += np.uint32(keys[(block + 1) % 3])
        y += np.uint32((keys[(block + 2) % 3] + block + 1) & MASK)
    # In integers, where nothing is rounded.
    squares = (x >> np.uint32(8)).astype(np.int64) ** 2 + (y >> np.uint32(8)).astype(np.int64) ** 2
    return int(np.count_nonzero(squares <= 1 << 48))


def tensorflow_count(seed: int, shard: int, points: int, size: int = SHARD) -> int:
    first = shard * size
    words = (tf.constant(word, tf.uint32) for word in (seed & MASK, seed >> 32, first >> 32, first & MASK))
    return int(counter_of(size)(*words, tf.constant(points, tf.int32)))


# Random123's tests/kat_vectors: "threefry2x32 20", counter, key, output.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_published_known_answers(counter: tuple[int, int], key: tuple[int, int], expected: tuple[int, int]) -> None:
    low, high, first, second = (tf.constant(word, tf.uint32) for word in (*key, *counter))
    assert tuple(int(word) for word in threefry_2x32((low, high), (first, second))) == expected


@pytest.mark.parametrize(
    ("seed", "shard", "points"),
    [
        (0, 0, 0),
        (0, 0, 1),
        (0, 0, 2),
        (1, 0, 1),
        (7, 3, 1000),
        (7, 0, SHARD - 1),
        (7, 0, SHARD),
        (7, 1, SHARD),
        (2**32, 0, 100_000),
        (2**32 + 7, 5, 100_001),
        (2**63 - 1, 2**32 - 1, 100_000),
        (2**64 - 1, 1, 100_000),
    ],
)
def test_the_count_equals_that_of_numpy(seed: int, shard: int, points: int) -> None:
    assert tensorflow_count(seed, shard, points) == numpy_count(seed, shard * SHARD, points)


def test_the_points_do_not_depend_on_the_size_of_the_shards() -> None:
    large = tensorflow_count(5, 1, SHARD)
    for size in (1 << 16, 1 << 20):
        shards = range(SHARD // size, 2 * SHARD // size)
        assert sum(tensorflow_count(5, shard, size, size) for shard in shards) == large


def test_a_largest_shard_which_generates_several_points_at_once_has_the_same_points() -> None:
    largest = 4 * SHARD
    for points in (0, 1, SHARD + 12_345, 3 * SHARD, largest):
        parts = [min(SHARD, max(0, points - shard * SHARD)) for shard in range(4)]
        expected = sum(tensorflow_count(5, 4 + shard, part) for shard, part in enumerate(parts))
        assert tensorflow_count(5, 1, points, largest) == expected


@pytest.mark.parametrize(
    ("samples", "devices", "exponent"),
    [(1, 1, 16), (10**6, 16, 16), (10**7, 2, 20), (10**7, 16, 17), (10**8, 2, 23), (10**9, 2, 24), (2**54, 1000, 24)],
)
def test_each_device_has_several_shards_within_bounds(samples: int, devices: int, exponent: int) -> None:
    assert shard_size(samples, devices) == 1 << exponent


def test_both_halves_of_the_seed_and_the_shard_matter_and_a_count_is_near_pi() -> None:
    counts = {tensorflow_count(seed, shard, SHARD) for seed in (0, 1, 2**32, 2**32 + 1) for shard in (0, 1)}
    assert len(counts) == 8
    estimated = estimate(sum(tensorflow_count(2026, shard, SHARD) for shard in range(4)), 4 * SHARD)
    assert abs(estimated["pi"] - math.pi) < 5 * estimated["stderr"]


@pytest.mark.parametrize(
    ("inside", "samples", "expected"),
    [
        # pi = 4p, its standard error 4 sqrt(p (1 - p) / n).
        (75, 100, (3.0, 4 * math.sqrt(0.75 * 0.25 / 100))),
        (1, 2, (2.0, 4 * math.sqrt(0.125))),
        (0, 10, (0.0, 0.0)),
        (10, 10, (4.0, 0.0)),
        (2**53, 2**54, (2.0, 4 * 0.5 / 2**27)),
    ],
)
def test_pi_and_its_standard_error(inside: int, samples: int, expected: tuple[float, float]) -> None:
    estimated = estimate(inside, samples)
    assert (estimated["pi"], estimated["stderr"]) == pytest.approx(expected, rel=1e-14)
    assert (estimated["inside"], estimated["samples"]) == (inside, samples)
    assert estimated.keys() == {"pi", "stderr", "interval", "samples", "inside"}


@pytest.mark.parametrize(
    ("inside", "samples"), [(0, 1), (1, 1), (0, 10), (10, 10), (1, 10), (75, 100), (785398, 1_000_000)]
)
def test_wilsons_interval_is_where_the_score_test_has_its_critical_value(inside: int, samples: int) -> None:
    # The interval's ends are the two p with |inside/n - p| = z sqrt(p (1 - p) / n): roots of a quadratic.
    z = 1.959963984540054
    share = inside / samples
    roots = np.roots([1 + z**2 / samples, -(2 * share + z**2 / samples), share**2])
    assert estimate(inside, samples)["interval"] == pytest.approx(sorted(4 * roots), abs=1e-9)


def estimate_pi(samples: int, seed: int) -> dict[str, Any]:
    """Run the program, as its driver does, and return its result."""
    pi.run(samples, seed)
    result: dict[str, Any] = current_run().result
    return result


def run_here(monkeypatch: pytest.MonkeyPatch, devices: int, samples: int, seed: int) -> tuple[Context, dict[str, Any]]:
    """Pi on some number of CPU devices of this process, in place of a cluster's."""

    def session(graph: tf.Graph, used: Iterable[str], **options: bool) -> Any:
        assert list(used) == list(names[: len(list(used))])
        assert options == {"as_written": False, "optimized": False}
        return tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"CPU": 2}))

    monkeypatch.setattr(sessions, "open_session", session)
    monkeypatch.setattr(sessions, "check_listening", lambda *arguments: None)
    names = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(devices))
    context = Context("pi-1", {"localhost": ["localhost:1"]}, names, lambda event, **fields: None)
    set_current_run(context)
    return context, estimate_pi(samples, seed)


@pytest.mark.parametrize(
    ("samples", "seed"), [pytest.param(2 * SHARD + 12_345, 2**40 + 7, marks=pytest.mark.slow), (5, 3)]
)
def test_the_result_equals_that_of_numpy_for_any_number_of_devices(
    monkeypatch: pytest.MonkeyPatch, samples: int, seed: int
) -> None:
    shards = range(-(-samples // SHARD))
    inside = sum(numpy_count(seed, shard * SHARD, min(SHARD, samples - shard * SHARD)) for shard in shards)
    for devices in (1, 2):
        context, result = run_here(monkeypatch, devices, samples, seed)
        assert result["samples_per_s"] > 0
        assert result == {
            **estimate(inside, samples),
            "samples_per_s": result["samples_per_s"],
            "seed": seed,
        }
        assert sum(work["samples"] for work in context.device_stats.values()) == samples
        assert set(context.device_stats) <= {f"/job:localhost/task:0/device:CPU:{number}" for number in range(devices)}
        assert all(work["ops"] > 0 for work in context.device_stats.values())
