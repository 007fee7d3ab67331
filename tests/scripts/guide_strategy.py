"""The cluster of TensorFlow's own guide: a strategy of parameter servers, and what a script leaves open at its end."""

# mypy: disable-error-code="untyped-decorator"

from typing import IO, Any

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    weight = tf.Variable(0.0)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


def read_numbers(context: Any) -> Any:
    return tf.data.Dataset.range(100).batch(4)


@tf.function
def distribute_numbers() -> Any:
    return strategy.distribute_datasets_from_function(read_numbers)


@tf.function
def step(numbers: Any) -> Any:
    def add(batch: Any) -> Any:
        weight.assign_add(1.0)
        return tf.reduce_sum(batch)

    return strategy.run(add, args=(next(numbers),))


numbers = iter(coordinator.create_per_worker_dataset(distribute_numbers))
sums = [coordinator.schedule(step, args=(numbers,)) for _ in range(10)]
coordinator.join()
print("weight", weight.numpy(), weight.device)
print("sums of batches:", all(int(each.fetch()) >= 6 for each in sums))
file = open("result.txt", "w")  # noqa: SIM115 - the interpreter closes it
file.write("42")


def result() -> IO[str]:
    return file  # its sessions and threads are still there when the interpreter ends and closes it
