"""Waits for nothing: the servers compute, then the script itself, then it sleeps."""

import os
import time

import tensorflow as tf

with tf.Graph().as_default(), tf.device("/job:worker/task:1"):
    rounds = tf.while_loop(
        lambda i: i < 300,
        lambda i: [i + tf.cast(1 + 0 * tf.reduce_sum(tf.random.normal([300, 300]) @ tf.ones([300, 9])), tf.int32)],
        [0],
    )
    with tf.compat.v1.Session(os.environ["TFCLUSTER_MASTER"]) as session:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            session.run(rounds)
end = time.monotonic() + 1
while time.monotonic() < end:
    sum(range(1000))
time.sleep(1.5)
