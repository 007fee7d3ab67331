"""MapReduce: map on the cluster's devices, reduce in the run's driver. A public API, which pi and mean also use.

The work is split into numbered shards, and each free device takes the next shard. A shard whose task was lost is
computed again, and the result is bit-identical regardless of which device computed it. In your own script:

    from tfcluster.programs.map_reduce import map_reduce

    total = map_reduce(lambda shard: tf.reduce_sum(tf.range(1000 * shard, 1000 * (shard + 1))), shards=500)

`map_reduce` is sufficient for most scripts. It is built on `map_shards`, which hands out shards to any function, and on
`SessionPool`, which runs a computation on each device in a separate session per task.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from tfcluster import settings
from tfcluster.programs.api import Context, current_run
from tfcluster.programs.executor import DeviceLostError, ShardResult, map_shards
from tfcluster.programs.session_pool import Computation, SessionPool
from tfcluster.programs.sessions import joins

__all__ = ["Computation", "DeviceLostError", "Progress", "SessionPool", "ShardResult", "map_reduce", "map_shards"]


class Progress:
    """Counts the work of each device, in a `unit` in the plural such as `samples`, and emits progress events."""

    def __init__(self, context: Context, total: int, unit: str) -> None:
        self._context = context
        self._total = total
        self._unit = unit
        self._done = 0
        self._reported: float | None = None

    def add(self, device: str, done: int) -> None:
        """Add work done by a device of a full name."""
        work = self._context.stats_of(device)
        work[self._unit] = work.get(self._unit, 0) + done
        self._done += done
        now = time.monotonic()
        if self._reported is None or now - self._reported >= settings.PROGRESS_INTERVAL_SECONDS:
            self._reported = now
            self._context.progress(self._done, self._total, self._unit)


def map_reduce(function: Callable[[Any], Any], shards: int, reduce: Callable[[Any, Any], Any] = operator.add) -> Any:
    """Compute `function` for every shard on the run's devices, and reduce the values in the order of the shards.

    Because of this order the result is bit-identical for any number of devices, even if tasks are lost and their shards
    are computed again; `reduce` need not even be associative. It is also the reason why the reduction is sequential and
    runs in the driver instead of in a tree over the tasks: the shape of a tree, and with it the rounding of sums of
    floats, would depend on the number of tasks. The cost is low as long as values are small, which they should be
    because a device aggregates its whole shard before it sends a value. Keep `reduce` short compared with the duration
    of a shard.

    Args:
        function: Function of the shard number, called once with an int64 scalar tensor. It builds the shard's value:
            one tensor, or a tuple or dict of tensors, with the same shapes for all shards. The value must depend on
            this number alone. TensorFlow servers cache functions compiled with `jit_compile` by name, so a function
            whose body has changed needs another name.
        shards: Number of shards, at least 1; they are numbered 0, 1, …, `shards - 1`. A shard should take at least
            some milliseconds and must not take more than 120 s.
        reduce: Combines two values, the earlier one first, into one. The values are NumPy arrays or scalars. The
            default is addition.

    Returns:
        reduce(…reduce(reduce(f(0), f(1)), f(2))…, f(shards - 1)).

    Raises:
        ValueError: `shards` is less than 1.
        ClusterError: This process is not part of a run, every device was lost for some seconds, too many tasks were
            lost during the same shards, or a shard takes too long.
    """
    if shards < 1:
        raise ValueError(f"there must be shards to reduce, not {shards}")
    context = current_run()
    devices, late = context.devices[:shards], context.late_devices
    waiting: dict[int, list[Any]] = {}
    reduced: list[Any] = []
    following = 0
    progress = Progress(context, shards, "shards")
    with SessionPool(context, [*devices, *late], lambda: _all_shards(function)) as on:
        step = lambda device, first, count: on.run(device, {"first": first, "count": count})  # noqa: E731
        for part in map_shards(devices, shards, step, late=late, joins=partial(joins, context)):
            progress.add(part.device, part.count)
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
    return Computation({"first": first, "count": count}, tf.nest.pack_sequence_as(structure, stacked))


def _values(stacked: Any, count: int) -> list[Any]:
    """Split the stacked values of consecutive shards into those of each."""
    return [tf.nest.map_structure(lambda each, index=index: each[index], stacked) for index in range(count)]
