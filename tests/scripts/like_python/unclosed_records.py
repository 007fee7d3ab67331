"""Leaves a file of TensorFlow open."""
# slow $ python ./unclosed_records.py

import tensorflow as tf

writer = tf.io.TFRecordWriter("train.tfrecord")
for number in range(100):
    writer.write(str(number).encode() * 10)


def records():
    return writer
