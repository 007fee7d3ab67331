"""Sorts a hundred shards of random numbers."""

import tensorflow as tf

from tfcluster import map_reduce


def busy(shard: tf.Tensor) -> tf.Tensor:
    values = tf.random.stateless_uniform([1_000_000], seed=tf.stack([shard, 1]))
    return tf.reduce_sum(tf.sort(values)[:1])


print(map_reduce(busy, 100))
