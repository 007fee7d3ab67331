"""Tells which variables are there, each named as CONTAINER:TYPE:NAME."""

import os
import sys

import tensorflow as tf

there = []
with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
    for variable in sys.argv[1:]:
        container, kind, name = variable.split(":")
        handle = tf.raw_ops.VarHandleOp(container=container, shared_name=name, dtype=kind, shape=None)
        there.append(tf.raw_ops.VarIsInitializedOp(resource=handle))
    with tf.compat.v1.Session(os.environ["TFCLUSTER_MASTER"]) as session:
        print([bool(each) for each in session.run(there)], flush=True)
