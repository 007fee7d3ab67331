"""A training of several processes that prints a line after its first step, as `launch.py` measures it."""

from __future__ import annotations

import tensorflow as tf


def main() -> None:
    """Take one step together with the other workers."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(1.0)

    def on_a_replica() -> tf.Tensor:
        gradient = tf.distribute.get_replica_context().all_reduce("sum", weight.read_value())
        return weight.assign_sub(0.1 * gradient)

    tf.function(lambda: strategy.run(on_a_replica))()
    print("first step", flush=True)


if __name__ == "__main__":
    main()
