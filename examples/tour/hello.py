"""Hello from every device of the cluster: a script of TensorFlow 2 that computes on the tasks.

tfcluster up examples/cluster.yaml
tfcluster run examples/tour/hello.py
"""

import tensorflow as tf

# The resolver reads TF_CONFIG, which `tfcluster run` sets: the script is the chief, the tasks are its servers.
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tf.config.experimental_connect_to_cluster(resolver.cluster_spec(), job_name="chief", protocol="grpc")

for job in ("ps", "worker"):
    for index in range(resolver.cluster_spec().num_tasks(job)):
        with tf.device(f"/job:{job}/task:{index}/device:CPU:0"):
            total = tf.reduce_sum(tf.range(1001))
        print(f"hello from {job}:{index}: the sum of 1 to 1000 is {total.numpy()}")
