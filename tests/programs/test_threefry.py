"""The generator: the published known answers, and the uniformity and independence of what it makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tfcluster.programs.threefry import threefry_2x32

# The lower and upper 0.1 % points of chi-square with 255 and 65535 degrees of freedom: counts that are too even
# are as wrong as those that are too uneven. A perfect generator passes each 499 times of 500; the keys are fixed.
CRITICAL_255 = (190.867, 330.520)
CRITICAL_65535 = (64421.9, 66659.5)
KEYS = [(0, 0), (1, 0), (0, 1), (0xFFFFFFFF, 0x12345678)]


def generate(key: tuple[int, int], counters: tuple[Any, Any]) -> npt.NDArray[np.uint32]:
    """The two words of each counter, as rows."""
    low, high, first, second = (tf.constant(words, tf.uint32) for words in (*key, *counters))
    x, y = threefry_2x32((low, high), (first, second))
    return np.stack([x.numpy(), y.numpy()], axis=-1)


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
    words = generate(key, ([counter[0]], [counter[1]]))
    assert words.tolist() == [list(expected)]


def sequence(key: tuple[int, int], shard: int) -> npt.NDArray[np.uint8]:
    """The bytes of 2^20 numbers as pi takes them: counters (i, shard)."""
    index = np.arange(1 << 19, dtype=np.uint32)
    return generate(key, (index, np.full_like(index, shard))).reshape(-1).view(np.uint8)


def chi_square(counts: npt.NDArray[np.int64]) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2).sum() / expected)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("shard", [0, 1, 0xFFFFFFFF])
def test_bytes_are_uniform(key: tuple[int, int], shard: int) -> None:
    words = sequence(key, shard).reshape(-1, 4)
    for place in range(4):
        counts = np.bincount(words[:, place], minlength=256)
        assert CRITICAL_255[0] < chi_square(counts) < CRITICAL_255[1]


@pytest.mark.parametrize("key", KEYS)
def test_pairs_of_successive_bytes_are_uniform(key: tuple[int, int]) -> None:
    # Pairs that do not overlap: of the two words of a counter, and of successive counters' words.
    upper = sequence(key, 0).reshape(-1, 2, 4)[:, :, 3].astype(np.int64)
    for first, second in ((upper[:, 0], upper[:, 1]), (upper[::2, 0], upper[1::2, 0]), (upper[::2, 1], upper[1::2, 1])):
        counts = np.bincount(256 * first + second, minlength=65536)
        assert CRITICAL_65535[0] < chi_square(counts) < CRITICAL_65535[1]


def test_one_bit_of_key_or_counter_changes_half_of_the_output() -> None:
    base = generate((3, 5), ([7], [11]))[0]
    changed = []
    for bit in range(32):
        flip = 1 << bit
        changed += [generate((3 ^ flip, 5), ([7], [11]))[0], generate((3, 5 ^ flip), ([7], [11]))[0]]
        changed += [generate((3, 5), ([7 ^ flip], [11]))[0], generate((3, 5), ([7], [11 ^ flip]))[0]]
    differing = [sum(int(word).bit_count() for word in base ^ other) for other in changed]
    # 64 fair coins have a standard deviation of 4; six of them on either side.
    assert all(8 <= count <= 56 for count in differing)
    # The sum of 128 times 64 coins: 4096 with a standard deviation of 45, four of them on either side.
    assert abs(sum(differing) - 4096) < 4 * 45
