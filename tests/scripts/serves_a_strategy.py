"""A member of a ParameterServerStrategy; a worker ends when there is a file with its name."""

import os
import time

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
task, cluster = os.environ["TFCLUSTER_TASK"], resolver.cluster_spec()
if task != "chief:0":
    server = tf.distribute.Server(cluster, job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc")
    while not os.path.exists(task):
        time.sleep(0.1)
    os._exit(0)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
step = tf.function(lambda: tf.reduce_sum(tf.range(10)))
while True:
    coordinator.schedule(step)
    coordinator.join()  # WAITS HERE
    print("step", flush=True)
    time.sleep(0.1)
