"""Prints a variable that the server of a ps keeps between runs; `set` sets it."""

import os
import sys

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
with tf.device("/job:ps/task:0"):
    kept = tf.get_variable("kept", initializer=0, use_resource=False)
with tf.Session(os.environ["TFCLUSTER_MASTER"]) as session:
    if "set" in sys.argv:
        session.run(kept.assign(42))
    print("kept", session.run(kept))
