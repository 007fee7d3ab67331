"""A ParameterServerStrategy that loses a worker in the middle of the training, and continues.

tfcluster run examples/tour/lost_worker.py
tfcluster events -n 3
"""

import json
import os
import signal
import subprocess

import tensorflow as tf

STEPS, BATCH, RATE = 400, 16, 0.05

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():  # the variables are on the ps
    weight = tf.Variable(0.0)
    bias = tf.Variable(0.0)


@tf.function
def step() -> None:
    """Train on one batch of y = 3x - 1, on the worker that is free."""
    x = tf.random.uniform([BATCH], -1.0, 1.0)
    error = weight * x + bias - (3.0 * x - 1.0)
    weight.assign_sub(RATE * tf.reduce_mean(error * x))
    bias.assign_sub(RATE * tf.reduce_mean(error))


def kill_a_worker() -> None:
    """Kill the server worker:1, as a crash would."""
    status = json.loads(subprocess.check_output(["tfcluster", "status", "-o", "json"]))
    (pid,) = [task["pid"] for task in status["tasks"] if task["name"] == "worker:1"]
    os.kill(pid, signal.SIGKILL)
    print("killed worker:1", flush=True)


for number in range(1, STEPS + 1):
    coordinator.schedule(step)
    if number % 100 == 0:
        coordinator.join()
        print(f"step {number}: weight {weight.numpy():.2f}, bias {bias.numpy():.2f}")
    if number == STEPS // 2 + 10:
        kill_a_worker()
print(f"y = {weight.numpy():.2f} x + {bias.numpy():.2f}")
