"""The graph of a training: a loop over batches, its layers and its examples divided among devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfcluster.programs.context import Context
from tfcluster.programs.session import run_graph, task_of


@dataclass(frozen=True)
class BatchShard:
    """The examples `start` … `stop - 1` of each batch, which a device needs."""

    device: str
    start: int
    stop: int


@dataclass(frozen=True)
class Partitioning:
    """How a training is divided.

    Attributes:
        mode: `single`, `data-parallel` or `model-parallel`.
        layers: The device of each layer's weights.
        shares: Who gets which examples. Where the layers are apart, each of their devices gets all.
    """

    mode: str
    layers: tuple[str, str]
    shares: tuple[BatchShard, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that takes part, one that computes first."""
        return tuple(dict.fromkeys((*(share.device for share in self.shares), *self.layers)))


@dataclass(frozen=True)
class Network:
    """A graph that trains.

    Attributes:
        graph: The graph.
        begin: Gives the layers their first weights.
        steps: Placeholder of how many steps to make.
        examples: For each share a placeholder of its x, shape [steps, its examples].
        losses: Makes the steps and gives their losses, each on its batch before the weights change.
        layers: Both layers' weights.
    """

    graph: tf.Graph
    begin: Any
    steps: Any
    examples: list[Any]
    losses: Any
    layers: list[Any]


def divide(mode: str, devices: Sequence[str], parameters: str | None, batch: int) -> Partitioning:
    """Divide a training among devices.

    Args:
        mode: `single`: everything on the first device. `data-parallel`: each device takes its part of the batch.
            `model-parallel`: each layer on a task of its own, or where there is only one on a device of its own.
        devices: The devices to compute on.
        parameters: The device that keeps the weights in `data-parallel`; None for the first that computes.
        batch: Examples in a batch.
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


def build(context: Context, division: Partitioning, initial: Sequence[Any], rate: float) -> Network:
    """The graph that trains by gradient descent.

    All steps of a call are one loop in the graph, which the servers go round by themselves: a step costs them
    a few messages and the driver none.

    Args:
        context: The run.
        division: Where everything is.
        initial: The layers' first weights.
        rate: The learning rate.
    """
    v1 = tf.compat.v1
    with run_graph(context) as graph, v1.variable_scope(division.mode):
        layers = []
        for name, device, weights in zip(("hidden", "output"), division.layers, initial, strict=True):
            with tf.device(device):
                layers.append(v1.get_variable(name, initializer=tf.constant(weights), use_resource=True))
        examples = []
        for share in division.shares:
            with tf.device(share.device):
                examples.append(v1.placeholder(tf.float64, [None, share.stop - share.start]))
        optimizer = v1.train.GradientDescentOptimizer(tf.constant(rate, tf.float64))
        gradients = _of_layers_apart if division.mode == "model-parallel" else _of_shares

        def step(number: Any) -> Any:
            columns = []
            for share, each in zip(division.shares, examples, strict=True):
                with tf.device(share.device):
                    columns.append(tf.gather(each, number)[:, tf.newaxis])
            loss, found = gradients(division, layers, columns)
            with tf.control_dependencies([optimizer.apply_gradients(zip(found, layers, strict=True))]):
                return tf.identity(loss)

        with tf.device(f"{task_of(division.layers[0])}/device:CPU:0"):
            steps = v1.placeholder(tf.int32, [])
            losses = _loop(steps, step)
        return Network(graph, v1.variables_initializer(layers), steps, examples, losses, layers)


def _loop(steps: Any, step: Callable[[Any], Any]) -> Any:
    """What `step` gives for 0, 1, 2, …, one after the other."""

    def body(number: Any, losses: Any) -> tuple[Any, Any]:
        loss = step(number)
        with tf.control_dependencies([loss]):  # the next step finds the weights changed
            return number + 1, losses.write(number, loss)

    _, losses = tf.compat.v1.while_loop(
        lambda number, _: number < steps,
        body,
        [tf.constant(0), tf.TensorArray(tf.float64, size=steps)],
        parallel_iterations=1,
    )
    return losses.stack()


def _of_shares(division: Partitioning, layers: Sequence[Any], columns: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Loss and gradients where each device sees a part of the batch: means over the parts, weighed by their sizes."""
    keeper, batch = division.layers[0], division.shares[-1].stop
    shapes = [[], *(layer.shape for layer in layers)]
    with tf.device(keeper):
        weights = _pack([layer.read_value() for layer in layers])
    parts = []
    for share, x in zip(division.shares, columns, strict=True):
        with tf.device(share.device):
            local = _unpack(tf.identity(weights), shapes[1:])
            loss = _loss(_output(local[1], _hidden(local[0], x)), x)
            outcome = _pack([loss, *tf.compat.v1.gradients(loss, local)])
            parts.append((share.stop - share.start) / batch * outcome)
    with tf.device(keeper):
        loss, *gradients = _unpack(tf.add_n(parts), shapes)
    return loss, gradients


def _of_layers_apart(division: Partitioning, layers: Sequence[Any], columns: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Loss and gradients where each device has a layer: what one puts out goes forth, its gradient comes back."""
    with tf.device(division.layers[0]):
        between = _hidden(layers[0].read_value(), columns[0])
    with tf.device(division.layers[1]):
        loss = _loss(_output(layers[1].read_value(), between), columns[-1])
    return loss, tf.compat.v1.gradients(loss, layers, colocate_gradients_with_ops=True)


def _pack(tensors: Sequence[Any]) -> Any:
    """One vector of all, so that a step costs a device one message each way."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _unpack(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
    pieces = tf.split(vector, sizes)
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _hidden(layer: Any, x: Any) -> Any:
    return tf.tanh(x @ layer[:-1] + layer[-1])


def _output(layer: Any, between: Any) -> Any:
    return between @ layer[:-1] + layer[-1]


def _loss(found: Any, x: Any) -> Any:
    return tf.reduce_mean(tf.square(found - tf.exp(x)))
