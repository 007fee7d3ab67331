"""A MultiWorkerMirroredStrategy with a training loop of its own and checkpoints, from which it goes on after a restart.

tfcluster launch --workers 2 --max-restarts 3 examples/multi_worker.py --checkpoints trained
"""

import argparse
import os
import shutil

import tensorflow as tf

EXAMPLES, BATCH = 64, 16  # the batch of all workers together

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--checkpoints", default="checkpoints", help="a folder that all workers share")
options = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
is_chief = resolver.task_type in (None, "chief") or (resolver.task_type, resolver.task_id) == ("worker", 0)

with strategy.scope():
    weight = tf.Variable([[0.0]])
    bias = tf.Variable([0.0])
    epoch = tf.Variable(0, dtype=tf.int64)

# Every worker has to save, because variables may have a part on each, but only one writes to the folder that counts.
checkpoint = tf.train.Checkpoint(weight=weight, bias=bias, epoch=epoch)
folder = options.checkpoints if is_chief else os.path.join(options.checkpoints, f"of_worker_{resolver.task_id}")
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
if latest := tf.train.latest_checkpoint(options.checkpoints):
    checkpoint.restore(latest)
    print("continuing after epoch", epoch.numpy())

x = tf.reshape(tf.linspace(-1.0, 1.0, EXAMPLES), [-1, 1])
data = tf.data.Dataset.from_tensor_slices((x, 3.0 * x - 1.0)).batch(BATCH).repeat()
iterator = iter(strategy.experimental_distribute_dataset(data))


@tf.function
def train_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    """Train on a batch, divided among the workers; return its loss."""

    def on_a_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weight + bias - y) ** 2) / BATCH
        gradients = tape.gradient(loss, [weight, bias])
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        weight.assign_sub(0.05 * gradients[0])
        bias.assign_sub(0.05 * gradients[1])
        return loss

    return strategy.reduce("sum", strategy.run(on_a_replica, args=batch), axis=None)


while epoch < options.epochs:
    for _ in range(EXAMPLES // BATCH):
        loss = train_step(next(iterator))
    epoch.assign_add(1)
    manager.save()
    if is_chief:
        print(f"epoch {epoch.numpy()}: loss {loss.numpy():.6f}")
if is_chief:
    print(f"y = {weight.numpy().item():.4f} x + {bias.numpy().item():.4f}")
else:
    shutil.rmtree(folder)
