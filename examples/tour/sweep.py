"""A sweep: `tfcluster sweep` runs this training once for each learning rate, on all workers at the same time.

tfcluster sweep --best loss examples/tour/sweep.py --rate '{0.5..0.001 log 4}'
tfcluster runs -n 1
"""

import argparse

import tensorflow as tf

import tfcluster

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, required=True)
rate = parser.parse_args().rate

tf.random.set_seed(4)
x = tf.random.normal([1000])
y = 3 * x - 1
w, b = tf.Variable(0.0), tf.Variable(0.0)
optimizer = tf.keras.optimizers.SGD(rate)
for step in range(50):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((w * x + b - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))
    tfcluster.metric("loss", float(loss), step)
print(f"y = {float(w):.2f} x + {float(b):.2f}")
