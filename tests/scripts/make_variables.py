"""Makes variables of both kinds on the ps in a container, or tells whether they are there."""

import os
import sys
import time

import tensorflow as tf

what, container = sys.argv[1:]
with tf.Graph().as_default() as graph, graph.container(container or os.environ["TFCLUSTER_RUN"]):
    with tf.device("/job:ps/task:0"):
        both = [tf.compat.v1.get_variable(f"v{kind}", initializer=1.0, use_resource=kind) for kind in (False, True)]
        there = [tf.compat.v1.is_variable_initialized(variable) for variable in both]
        made = tf.compat.v1.global_variables_initializer()
    with tf.compat.v1.Session(os.environ["TFCLUSTER_MASTER"]) as session:
        if what != "look":
            session.run(made)
        print([bool(each) for each in session.run(there)], flush=True)
        while what == "hold":
            time.sleep(60)
