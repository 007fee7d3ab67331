"""Ends while TensorFlow writes a checkpoint, and with a writer of summaries that is not closed."""

import tensorflow as tf

tf.summary.create_file_writer("events").set_as_default()
for step in range(5):
    tf.summary.scalar("loss", 1.0 / (step + 1), step=step)
checkpoint = tf.train.Checkpoint(variable=tf.Variable(tf.range(1000.0)))
checkpoint.save("async/ckpt", options=tf.train.CheckpointOptions(enable_async=True))
