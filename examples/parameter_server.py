r"""A ParameterServerStrategy: the chief trains on workers and ps, the evaluator tests each checkpoint that it leaves.

tfcluster launch --spec examples/roles.yaml --each chief,worker,ps,evaluator --max-restarts 3 \
    examples/parameter_server.py --checkpoints trained
"""

import argparse

import tensorflow as tf

EXAMPLES, BATCH = 64, 16

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--checkpoints", default="checkpoints", help="a folder that chief and evaluator share")
options = parser.parse_args()


def make_dataset(_: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    """Return endless points of y = 3x - 1; each worker has a dataset of its own."""
    x = tf.reshape(tf.linspace(-1.0, 1.0, EXAMPLES), [-1, 1])
    return tf.data.Dataset.from_tensor_slices((x, 3.0 * x - 1.0)).batch(BATCH).repeat()


class Line(tf.Module):
    """The line that is fitted.

    Attributes:
        epoch: How many epochs it was trained.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable([[0.0]])
        self.bias = tf.Variable([0.0])
        self.epoch = tf.Variable(0, dtype=tf.int64)

    def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Return the mean squared error."""
        return tf.reduce_mean((x @ self.weight + self.bias - y) ** 2)


def train(strategy: tf.distribute.ParameterServerStrategy) -> None:
    """Train, as the chief."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        line = Line()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(line=line), options.checkpoints, max_to_keep=3)
    if manager.restore_or_initialize():
        print("continuing after epoch", line.epoch.numpy())

    @tf.function
    def step(iterator: tf.data.Iterator) -> None:
        def on_a_replica(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = line.loss(x, y)
            gradients = tape.gradient(loss, [line.weight, line.bias])
            line.weight.assign_sub(0.2 * gradients[0])
            line.bias.assign_sub(0.2 * gradients[1])

        strategy.run(on_a_replica, args=next(iterator))

    @tf.function
    def make_worker_dataset() -> tf.data.Dataset:
        return strategy.distribute_datasets_from_function(make_dataset)

    iterator = iter(coordinator.create_per_worker_dataset(make_worker_dataset))
    while line.epoch < options.epochs:
        for _ in range(EXAMPLES // BATCH):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        line.epoch.assign_add(1)
        manager.save()
        print(f"epoch {line.epoch.numpy()}")
    print(f"y = {line.weight.numpy().item():.4f} x + {line.bias.numpy().item():.4f}")


def evaluate() -> None:
    """Evaluate each checkpoint, as the evaluator, up to the one of the last epoch."""
    line = Line()
    checkpoint = tf.train.Checkpoint(line=line)
    x, y = next(iter(make_dataset().unbatch().batch(EXAMPLES)))
    for path in tf.train.checkpoints_iterator(options.checkpoints):
        checkpoint.restore(path).expect_partial()
        print(f"epoch {line.epoch.numpy()}: loss {line.loss(x, y).numpy():.6f}")
        if line.epoch >= options.epochs:
            return


tf.get_logger().setLevel("ERROR")
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
elif resolver.task_type == "evaluator":
    evaluate()
else:
    train(tf.distribute.ParameterServerStrategy(resolver))
