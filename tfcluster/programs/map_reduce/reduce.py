"""`map_reduce`: a function of a shard's number, computed on the cluster's devices, and the reduction of its values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcluster.programs.context import current_run
from tfcluster.programs.map_reduce.executor import map_shards
from tfcluster.programs.map_reduce.progress import Progress
from tfcluster.programs.map_reduce.session_pool import Computation, SessionPool


def map_reduce(function: Callable[[Any], Any], shards: int, reduce: Callable[[Any, Any], Any] = operator.add) -> Any:
    """Compute `function` for every shard on the run's devices, and reduce the values in the order of the shards.

    That order is what makes the result the same to the bit however many devices share the work, and when tasks are
    lost and their shards done again: `reduce` need not even be associative. It is also why the reduction is in
    sequence and in the run's own process, not in a tree over the tasks, whose shape would be another for another
    number of them, and sums of floats with it. Little is lost by it: values are small, or should be, as a device adds
    up what its shard covers before it sends anything; keep `reduce` short against the time of a shard.

    Args:
        function: Called once, with an int64 scalar tensor, the number of a shard; builds the tensors of the shard's
            value (one, or a tuple or dict of some) whose shapes are the same for all shards. It must be a function of
            that number alone. TensorFlow servers keep what is compiled with `jit_compile` by the function's name,
            also when its body has changed since.
        shards: How many there are, at least 1: 0, 1, …, `shards - 1`. One should take milliseconds at least, and
            must not take more than 120 s.
        reduce: Makes one value of two, the earlier one first; the values are NumPy arrays or scalars. Addition when
            left out.

    Returns:
        reduce(…reduce(reduce(f(0), f(1)), f(2))…, f(shards - 1)).

    Raises:
        ValueError: There are no shards.
        ClusterError: Not in a run, every device was lost for some seconds, or a shard takes too long.
    """
    if shards < 1:
        raise ValueError(f"there must be shards to reduce, not {shards}")
    context = current_run()
    devices = context.devices[:shards]
    waiting: dict[int, list[Any]] = {}
    reduced: list[Any] = []
    following = 0
    progress = Progress(context, shards, "shards")
    with SessionPool(context, devices, lambda: _all_shards(function)) as on:
        step = lambda device, first, count: on.run(device, {"first": first, "count": count})  # noqa: E731
        for part in map_shards(devices, shards, step):
            progress.add(part.device, part.count)
            waiting[part.first] = _values(part.value, part.count)
            while following in waiting:
                values = waiting.pop(following)
                following += len(values)
                for value in values:
                    reduced = [reduce(reduced[0], value)] if reduced else [value]
    return reduced[0]


def _all_shards(function: Callable[[Any], Any]) -> Computation:
    """The values of a range of shards, stacked."""
    v1 = tf.compat.v1
    value_of = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
    structure = value_of.structured_outputs
    first, count = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [])
    size = tf.cast(count, tf.int32)
    arrays = [tf.TensorArray(each.dtype, size=size, element_shape=each.shape) for each in tf.nest.flatten(structure)]

    def compute_shard(index: Any, arrays: list[Any]) -> tuple[Any, list[Any]]:
        values = tf.nest.flatten(value_of(first + tf.cast(index, tf.int64)))
        return index + 1, [array.write(index, value) for array, value in zip(arrays, values, strict=True)]

    _, arrays = v1.while_loop(lambda index, _: index < size, compute_shard, [0, arrays], parallel_iterations=1)
    stacked = [array.stack() for array in arrays]
    return Computation({"first": first, "count": count}, tf.nest.pack_sequence_as(structure, stacked))


def _values(stacked: Any, count: int) -> list[Any]:
    """The value of each shard."""
    return [tf.nest.map_structure(lambda each, index=index: each[index], stacked) for index in range(count)]
