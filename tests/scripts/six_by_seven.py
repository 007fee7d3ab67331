"""Multiplies six by seven on a worker in a session that logs where operations are placed."""

import os

import tensorflow as tf

with tf.Graph().as_default() as graph:
    with tf.device("/job:worker/task:1/device:CPU:0"):
        answer = tf.identity(tf.compat.v1.placeholder_with_default(6.0, []) * 7.0, name="answer")
    filters = ["/job:worker"]
    config = tf.compat.v1.ConfigProto(device_filters=filters, log_device_placement=True)
    with tf.compat.v1.Session(os.environ["TFCLUSTER_MASTER"], config=config) as session:
        print(session.run(answer))
