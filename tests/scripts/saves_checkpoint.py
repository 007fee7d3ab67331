"""Reads a file on a worker, and saves a checkpoint from a ps, both by paths relative to the servers."""

import tensorflow as tf

strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
with strategy.scope():
    weight = tf.Variable(tf.zeros([4]))
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
rows = iter(coordinator.create_per_worker_dataset(lambda: tf.data.TextLineDataset("data.txt").repeat()))
print("read", coordinator.fetch(coordinator.schedule(tf.function(lambda rows: next(rows)), args=(rows,))))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(weight=weight), "ckpt", 3)
print("saved", manager.save())
