"""Reads what writes_late.py has written: five summaries, after the version of their format, and a checkpoint."""

import glob

import tensorflow as tf

variable = tf.Variable(tf.zeros(1000))
tf.train.Checkpoint(variable=variable).restore(tf.train.latest_checkpoint("async")).assert_consumed()
(events,) = glob.glob("events/*")
records = len(list(tf.compat.v1.train.summary_iterator(events)))
print("sum", float(tf.reduce_sum(variable)), "records", records)
