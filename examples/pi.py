"""What `tfcluster run pi` does, as your own script: tfcluster run --seed 7 examples/pi.py --points 1e8."""

import argparse
import math

import tensorflow as tf

import tfcluster

IN_A_SHARD = 1 << 20


def main() -> None:
    """Estimate pi, and report the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=float, default=1e7)
    points = int(parser.parse_args().points)
    seed = tfcluster.seed()

    def count_inside(shard: tf.Tensor) -> tf.Tensor:
        """Count the points of one shard inside the quarter circle; the last shard has fewer points."""
        key = tf.stack([tf.constant(seed, tf.int64), shard])  # so each shard has the same points on any device
        x, y = tf.unstack(tf.random.stateless_uniform([2, IN_A_SHARD], key))
        is_one = tf.range(IN_A_SHARD, dtype=tf.int64) < points - shard * IN_A_SHARD
        return tf.math.count_nonzero((x * x + y * y <= 1) & is_one)

    inside = tfcluster.map_reduce(
        count_inside,
        shards=-(-points // IN_A_SHARD),
        unit="points",
        work=lambda shards: min(shards * IN_A_SHARD, points),
    )
    share = inside / points
    error = 4 * math.sqrt(share * (1 - share) / points)
    print(f"pi = {4 * share:.6f} ± {error:.6f}, from {points:,} points with seed {seed}")
    tfcluster.result({"pi": 4 * share, "stderr": error, "inside": int(inside), "points": points, "seed": seed})


if __name__ == "__main__":
    main()
