"""Build the graph of a training (a while loop over batches), partitioned among devices by examples or by layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfcluster.programs.api import Context
from tfcluster.programs.sessions import run_graph, task_of


@dataclass(frozen=True)
class BatchShard:
    """The examples `start` … `stop - 1` of each batch, which are sent to a device."""

    device: str
    start: int
    stop: int


@dataclass(frozen=True)
class Partitioning:
    """The partitioning of a training among devices."""

    mode: str  # `single`, `data-parallel` or `model-parallel`
    layers: tuple[str, str]  # the device of each layer's weights
    shares: tuple[BatchShard, ...]  # in `model-parallel` each device gets all examples

    @property
    def devices(self) -> tuple[str, ...]:
        """Return all devices that take part, beginning with one that computes."""
        return tuple(dict.fromkeys((*(share.device for share in self.shares), *self.layers)))


@dataclass(frozen=True)
class Network:
    """The graph of a training."""

    graph: tf.Graph
    initializer: Any  # operation that initializes the weights
    steps: Any  # placeholder of the number of steps
    examples: list[Any]  # for each share a placeholder of its x, of shape [steps, examples of the share]
    losses: Any  # tensor that does the steps and contains the loss of each, on its batch before the weights change
    layers: list[Any]  # the weights of both layers


def partition(mode: str, devices: Sequence[str], parameters: str | None, batch: int) -> Partitioning:
    """Partition a training among devices.

    In `single` mode everything is on the first device. In `data-parallel`, each device computes its share of the batch,
    and `parameters` (by default the first device) stores the weights. In `model-parallel`, each layer is on a separate
    task, or on a separate device if there is only one task.
    """
    first = devices[0]
    if mode == "single":
        return Partitioning(mode, (first, first), (BatchShard(first, 0, batch),))
    if mode == "model-parallel":
        others = [device for device in devices if task_of(device) != task_of(first)] or list(devices[1:]) or [first]
        layers = (first, others[0])
        return Partitioning(mode, layers, tuple(BatchShard(device, 0, batch) for device in dict.fromkeys(layers)))
    workers = devices[:batch]
    bounds = [batch * number // len(workers) for number in range(len(workers) + 1)]
    shares = tuple(BatchShard(*share) for share in zip(workers, bounds, bounds[1:], strict=False))
    return Partitioning(mode, (parameters or first,) * 2, shares)


def build(context: Context, partitioning: Partitioning, initial: Sequence[Any], rate: float) -> Network:
    """Build the graph that trains by gradient descent.

    All steps of a call are one while loop in the graph, which the servers run without the driver: a step costs a few
    messages between servers and none to the driver.
    """
    v1 = tf.compat.v1
    with run_graph(context) as graph, v1.variable_scope(partitioning.mode):
        layers = []
        for name, device, weights in zip(("hidden", "output"), partitioning.layers, initial, strict=True):
            with tf.device(device):
                layers.append(v1.get_variable(name, initializer=tf.constant(weights), use_resource=True))
        examples = []
        for share in partitioning.shares:
            with tf.device(share.device):
                examples.append(v1.placeholder(tf.float64, [None, share.stop - share.start]))
        optimizer = v1.train.GradientDescentOptimizer(tf.constant(rate, tf.float64))
        gradients = _model_parallel_gradients if partitioning.mode == "model-parallel" else _data_parallel_gradients

        def step(number: Any) -> Any:
            columns = []
            for share, each in zip(partitioning.shares, examples, strict=True):
                with tf.device(share.device):
                    columns.append(tf.gather(each, number)[:, tf.newaxis])
            loss, values = gradients(partitioning, layers, columns)
            with tf.control_dependencies([optimizer.apply_gradients(zip(values, layers, strict=True))]):
                return tf.identity(loss)

        with tf.device(f"{task_of(partitioning.layers[0])}/device:CPU:0"):
            steps = v1.placeholder(tf.int32, [])
            losses = _loop(steps, step)
        return Network(graph, v1.variables_initializer(layers), steps, examples, losses, layers)


def _loop(steps: Any, step: Callable[[Any], Any]) -> Any:
    """Build a while loop that runs `step(number)`, which builds a step's loss, for 0, 1, …; return all losses."""

    def body(number: Any, losses: Any) -> tuple[Any, Any]:
        loss = step(number)
        with tf.control_dependencies([loss]):  # so that the next step reads the updated weights
            return number + 1, losses.write(number, loss)

    _, losses = tf.compat.v1.while_loop(
        lambda number, _: number < steps,
        body,
        [tf.constant(0), tf.TensorArray(tf.float64, size=steps)],
        parallel_iterations=1,
    )
    return losses.stack()


def _data_parallel_gradients(
    partitioning: Partitioning, layers: Sequence[Any], columns: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """Build the loss and the gradients: the means over the devices' shares, weighted by size."""
    parameter_device, batch = partitioning.layers[0], partitioning.shares[-1].stop
    shapes = [[], *(layer.shape for layer in layers)]
    with tf.device(parameter_device):
        weights = _pack([layer.read_value() for layer in layers])
    parts = []
    for share, x in zip(partitioning.shares, columns, strict=True):
        with tf.device(share.device):
            local = _unpack(tf.identity(weights), shapes[1:])
            loss = _loss(_output(local[1], _hidden(local[0], x)), x)
            packed = _pack([loss, *tf.compat.v1.gradients(loss, local)])
            parts.append((share.stop - share.start) / batch * packed)
    with tf.device(parameter_device):
        loss, *gradients = _unpack(tf.add_n(parts), shapes)
    return loss, gradients


def _model_parallel_gradients(
    partitioning: Partitioning, layers: Sequence[Any], columns: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """Build the loss and the gradients: the devices of the layers exchange the activations and their gradient."""
    with tf.device(partitioning.layers[0]):
        activations = _hidden(layers[0].read_value(), columns[0])
    with tf.device(partitioning.layers[1]):
        loss = _loss(_output(layers[1].read_value(), activations), columns[-1])
    return loss, tf.compat.v1.gradients(loss, layers, colocate_gradients_with_ops=True)


def _pack(tensors: Sequence[Any]) -> Any:
    """Concatenate tensors into one vector, so that a step costs a device one message in each direction."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _unpack(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
    pieces = tf.split(vector, sizes)
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _hidden(layer: Any, x: Any) -> Any:
    return tf.tanh(x @ layer[:-1] + layer[-1])


def _output(layer: Any, activations: Any) -> Any:
    return activations @ layer[:-1] + layer[-1]


def _loss(outputs: Any, x: Any) -> Any:
    return tf.reduce_mean(tf.square(outputs - tf.exp(x)))
