"""Pi as tutorials of distributed TensorFlow do it: the client makes all points and sends them in the graph."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf


def main(samples: int, workers: list[str]) -> float:
    """Estimate pi on the servers at `workers`, each given as its address."""
    v1 = tf.compat.v1
    points = np.random.default_rng().random((samples, 2), dtype=np.float32)
    parts = []
    with tf.Graph().as_default():
        for index, part in enumerate(np.array_split(points, len(workers))):
            with tf.device(f"/job:worker/task:{index}"):
                inside = tf.reduce_sum(tf.constant(part) ** 2, axis=1) <= 1.0
                parts.append(tf.reduce_sum(tf.cast(inside, tf.int64)))
        total = tf.add_n(parts)
        with v1.Session(f"grpc://{workers[0]}") as session:
            return float(4 * session.run(total) / samples)


if __name__ == "__main__":
    print(main(int(sys.argv[1]), sys.argv[2:]))
