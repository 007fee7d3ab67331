"""MapReduce: map on the cluster's devices, reduce in the run's driver. `tfcluster.map_reduce` describes it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tfcluster.programs.session_pool import Computation, SessionPool


def map_reduce(
    function: Callable[[Any], Any],
    shards: int,
    reduce: Callable[[Any, Any], Any] = operator.add,
    *,
    devices: Sequence[str] | None = None,
    unit: str = "shards",
    work: Callable[[int], int] | None = None,
    optimized: bool = True,
) -> Any:
    """Compute `function` for every shard on the run's devices, and reduce the values in the order of the shards.

    See `tfcluster.map_reduce`.

    The reduction is sequential and in the driver instead of in a tree over the tasks, because the shape of a tree, and
    with it the rounding of sums of floats, would depend on the number of tasks.
    """
    if shards < 1:
        raise ValueError(f"there must be shards to reduce, not {shards}")
    waiting: dict[int, list[Any]] = {}
    reduced: list[Any] = []
    following = 0
    with SessionPool(partial(_all_shards, function), devices, optimized=optimized) as on:
        step = lambda device, first, count: on.run(device, {"first": first, "count": count})  # noqa: E731
        for part in on.map(step, shards, unit=unit, work=work):
            waiting[part.first] = _values(part.value, part.count)
            while following in waiting:
                values = waiting.pop(following)
                following += len(values)
                for value in values:
                    reduced = [reduce(reduced[0], value)] if reduced else [value]
    return reduced[0]


def _all_shards(function: Callable[[Any], Any]) -> Computation:
    """Return the computation of a range of shards, whose outputs are the values of all shards, stacked."""
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
    return {"first": first, "count": count}, tf.nest.pack_sequence_as(structure, stacked)


def _values(stacked: Any, count: int) -> list[Any]:
    """Split the stacked values of consecutive shards into those of each."""
    return [tf.nest.map_structure(lambda each, index=index: each[index], stacked) for index in range(count)]
