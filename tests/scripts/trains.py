"""Trains on parameter servers, and then waits for a file that its argument names, if there is one."""

# mypy: disable-error-code="untyped-decorator"

import os
import sys
import time

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    weight = tf.Variable(0.0)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def step() -> None:
    strategy.run(lambda: weight.assign_add(1.0))


for _ in range(5):
    coordinator.schedule(step)
coordinator.join()
print("weight", weight.numpy(), flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
