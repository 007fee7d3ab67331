"""The sum of the squares of the numbers below 10^9, on all devices: tfcluster run examples/sum_of_squares.py."""

import tensorflow as tf

import tfcluster

NUMBERS, IN_A_SHARD = 10**9, 10**6
MODULUS = 2**31 - 1  # keeps the sum within int64


def sum_of_squares(shard: tf.Tensor) -> tf.Tensor:
    """The sum over one shard's numbers; built once for each device, then computed for each shard's number."""
    numbers = tf.range(shard * IN_A_SHARD, (shard + 1) * IN_A_SHARD)
    return tf.reduce_sum(numbers * numbers % MODULUS)


total = tfcluster.map_reduce(sum_of_squares, NUMBERS // IN_A_SHARD)
print(f"The sum of the squares of the numbers below {NUMBERS:,} is {total % MODULUS} modulo 2^31 - 1.")
