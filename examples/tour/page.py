"""A training that reports its loss: the page shows it as a curve while it runs.

tfcluster run --detach --name page examples/tour/page.py
tfcluster dashboard
tfcluster wait page
tfcluster runs page
tfcluster down
"""

import time

import tensorflow as tf

import tfcluster

STEPS = 100

x = tf.linspace(-1.0, 1.0, 64)
weight, bias = tf.Variable(0.0), tf.Variable(0.0)
for step in range(STEPS):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((weight * x + bias - (3.0 * x - 1.0)) ** 2)
    for variable, gradient in zip((weight, bias), tape.gradient(loss, (weight, bias)), strict=True):
        variable.assign_sub(0.1 * gradient)
    tfcluster.metric("loss", float(loss), step)
    time.sleep(0.1)  # so that you can watch
print(f"y = {weight.numpy():.2f} x + {bias.numpy():.2f}")
