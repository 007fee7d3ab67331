"""A small script that uses TensorFlow, as `launch.py` measures it."""

import tensorflow as tf

print(float(tf.reduce_sum(tf.range(1000.0))))
