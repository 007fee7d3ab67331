"""Map on the cluster's devices, reduce in the run: a public interface, on which pi and mean stand too.

Work is cut into numbered shards. Devices take the next ones as they get free; what a device had under way when its
task was lost is done again, and the result is the same to the bit whoever did what. In a script of your own:

    from tfcluster.programs.map_reduce import map_reduce

    total = map_reduce(lambda shard: tf.reduce_sum(tf.range(1000 * shard, 1000 * (shard + 1))), shards=500)

`map_reduce` is all that most need. Beneath it, `map_shards` hands out shards to any function, and `Devices` runs
a computation on each device in a session of its task's own.
"""

from __future__ import annotations

from tfcluster.programs.map_reduce.devices import Computation, Devices
from tfcluster.programs.map_reduce.progress import Progress
from tfcluster.programs.map_reduce.reducing import map_reduce
from tfcluster.programs.map_reduce.shards import LostDeviceError, Part, map_shards

__all__ = ["Computation", "Devices", "LostDeviceError", "Part", "Progress", "map_reduce", "map_shards"]
