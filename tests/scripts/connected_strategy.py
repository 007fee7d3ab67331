"""Adds on the workers of a cluster, by a strategy, from a plain Python process; a session reaches the cluster too."""

import tensorflow as tf

import tfcluster

cluster = tfcluster.connect()
assert cluster.target == "grpc://" + cluster.cluster_spec().task_address("worker", 0)
assert cluster.resolver().master() == cluster.target
with tf.compat.v1.Session(cluster.target) as session:
    assert any("/job:ps" in device.name for device in session.list_devices())
strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
with strategy.scope():
    total = tf.Variable(1.0)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
add = tf.function(lambda: total.assign_add(2.0))
for _ in range(10):
    coordinator.schedule(add)
coordinator.join()
print(total.device, float(total))
