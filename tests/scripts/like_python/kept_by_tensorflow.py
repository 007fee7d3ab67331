"""Leaves a file of TensorFlow open, and what its own modules keep: a connection to servers, and default sessions."""
# slow $ python ./kept_by_tensorflow.py

import tensorflow as tf
from tensorflow.python.eager import context


class Tag:
    def __init__(self, name):
        self.name = name

    def __del__(self, open=open):
        with open(self.name, "w") as file:
            file.write("released")


context.context().tag = Tag("context.txt")
tf.compat.v1.InteractiveSession().tag = Tag("session.txt")
with tf.Graph().as_default() as graph:
    tf.compat.v1.InteractiveSession(graph=graph).tag = Tag("another.txt")
writer = tf.io.TFRecordWriter("train.tfrecord")
for number in range(100):
    writer.write(str(number).encode() * 10)


def records():
    return writer
