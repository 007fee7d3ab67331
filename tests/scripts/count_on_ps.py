"""Adds one, computed on a worker, to a variable on the ps, with that worker as master, for each line that it reads.

A line names the worker, its address, and whether the variable is made first: what is lost shows itself.
"""

import json
import sys

import tensorflow as tf

for line in sys.stdin:
    index, address, make = json.loads(line)
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            counter = tf.compat.v1.get_variable("counter", initializer=tf.zeros([1000]), use_resource=True)
        with tf.device(f"/job:worker/task:{index}"):
            random = tf.compat.v1.random_uniform([1000], 1.0, 2.0)
            one = random / random
        with tf.device("/job:ps/task:0"):
            add = counter.assign_add(one)
        config = tf.compat.v1.ConfigProto(
            device_filters=["/job:ps/task:0", f"/job:worker/task:{index}"], operation_timeout_in_ms=60_000
        )
        with tf.compat.v1.Session(f"grpc://{address}", graph=graph, config=config) as session:
            try:
                if make:
                    session.run(counter.initializer)
                print(json.dumps(float(session.run(add)[0])), flush=True)
            except tf.errors.OpError as error:
                print(json.dumps(type(error).__name__), flush=True)
