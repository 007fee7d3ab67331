"""Threefry-2x32-20, a counter-based random number generator, in TensorFlow operations.

Reference: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11. The output is a function
of key and counter alone, so any device can generate any part of the stream. Because the generator consists of
elementwise operations, the compiler fuses it with the operations that use the numbers. The tests compare it with the
published known-answer vectors.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_ROUNDS = 20


def threefry_2x32(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return two uint32 tensors of random bits, of the shape of the two of the counter; those of the key broadcast."""
    keys = (key[0], key[1], tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(key[0], key[1]), _u32(_PARITY)))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for round_number in range(_ROUNDS):
        x = x + y
        y = tf.bitwise.bitwise_xor(_rotate(y, _ROTATIONS[round_number % 8]), x)
        if round_number % 4 == 3:
            injection = round_number // 4 + 1
            x = x + keys[injection % 3]
            y = y + keys[(injection + 1) % 3] + _u32(injection)
    return x, y


def _rotate(value: Any, by: int) -> Any:
    return tf.bitwise.bitwise_or(tf.bitwise.left_shift(value, _u32(by)), tf.bitwise.right_shift(value, _u32(32 - by)))


def _u32(value: int) -> Any:
    return tf.constant(value, tf.uint32)
