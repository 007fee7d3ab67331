"""A MultiWorkerMirroredStrategy with checkpoints: it fails in epoch 5, is restarted, and resumes after epoch 4.

tfcluster launch --workers 2 --max-restarts 1 examples/tour/restart.py --checkpoints trained --fail-in 5
"""

import argparse
import os

import tensorflow as tf

EPOCHS, EXAMPLES, BATCH = 10, 64, 16  # the batch of all workers together

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default="checkpoints", help="a folder that all workers share")
parser.add_argument("--fail-in", type=int, help="the epoch in which worker:1 fails at the first attempt")
options = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = os.environ["TFCLUSTER_TASK"]
with strategy.scope():
    weight, bias, epoch = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)

# Every worker must save, because a variable can have a part on each; the others' checkpoints are not used.
checkpoint = tf.train.Checkpoint(weight=weight, bias=bias, epoch=epoch)
folder = options.checkpoints if task == "worker:0" else os.path.join(os.environ["TFCLUSTER_OUTPUT"], "checkpoints")
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
if latest := tf.train.latest_checkpoint(options.checkpoints):
    checkpoint.restore(latest)
    print("continuing after epoch", epoch.numpy())

x = tf.linspace(-1.0, 1.0, EXAMPLES)
data = tf.data.Dataset.from_tensor_slices((x, 3.0 * x - 1.0)).batch(BATCH).repeat()
iterator = iter(strategy.experimental_distribute_dataset(data))


@tf.function
def train_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    """Train on a batch, divided among the workers; return its loss."""

    def on_a_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x * weight + bias - y) ** 2) / BATCH
        gradients = tape.gradient(loss, [weight, bias])
        for variable, gradient in zip((weight, bias), gradients, strict=True):
            variable.assign_sub(0.05 * tf.distribute.get_replica_context().all_reduce("sum", gradient))
        return loss

    return strategy.reduce("sum", strategy.run(on_a_replica, args=batch), axis=None)


while epoch < EPOCHS:
    if epoch + 1 == options.fail_in and task == "worker:1" and os.environ["TFCLUSTER_ATTEMPT"] == "0":
        raise RuntimeError("this failure is part of the tour")
    losses = [train_step(next(iterator)) for _ in range(EXAMPLES // BATCH)]
    epoch.assign_add(1)
    manager.save()
    if task == "worker:0":
        print(f"epoch {epoch.numpy()}: loss {losses[-1].numpy():.6f}")
if task == "worker:0":
    print(f"y = {weight.numpy():.4f} x + {bias.numpy():.4f}")
