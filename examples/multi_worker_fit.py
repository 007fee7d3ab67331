"""Keras's `fit` under a MultiWorkerMirroredStrategy, which goes on after a restart with the epoch that it was in.

tfcluster launch --workers 2 --max-restarts 3 examples/multi_worker_fit.py --backup trained
"""

import argparse
import os

# Keras 3 has no `fit` for several workers. Keras 2 is the package tf_keras: pip install tf_keras
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf

EXAMPLES, BATCH = 64, 16  # the batch of all workers together

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--backup", default="backup", help="a folder that all workers share")
options = parser.parse_args()

tf.keras.utils.set_random_seed(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
is_chief = resolver.task_type in (None, "chief") or (resolver.task_type, resolver.task_id) == ("worker", 0)

x = tf.reshape(tf.linspace(-1.0, 1.0, EXAMPLES), [-1, 1])
data = tf.data.Dataset.from_tensor_slices((x, 3.0 * x - 1.0)).batch(BATCH)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.05), loss="mse")

callbacks = [tf.keras.callbacks.BackupAndRestore(options.backup)]
if is_chief:
    report = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: print(f"epoch {epoch + 1}: loss {logs['loss']:.6f}")
    )
    callbacks.append(report)
model.fit(data, epochs=options.epochs, callbacks=callbacks, verbose=0)
if is_chief:
    weight, bias = (float(values.item()) for values in model.get_weights())
    print(f"y = {weight:.4f} x + {bias:.4f}")
