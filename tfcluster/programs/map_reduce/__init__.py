"""Map on the cluster's devices, reduce in the run: a public interface, on which pi and mean stand too.

The work is cut into numbered shards, and each device takes the next one when it is free. A shard whose task was lost is
computed again, and the result is the same to the bit whichever device computed it. In a script of your own:

    from tfcluster.programs.map_reduce import map_reduce

    total = map_reduce(lambda shard: tf.reduce_sum(tf.range(1000 * shard, 1000 * (shard + 1))), shards=500)

`map_reduce` is all that most need. Beneath it, `map_shards` hands out shards to any function, and `SessionPool` runs
a computation on each device in a session of its task's own.
"""

from __future__ import annotations

from tfcluster.programs.map_reduce.executor import DeviceLostError, ShardResult, map_shards
from tfcluster.programs.map_reduce.progress import Progress
from tfcluster.programs.map_reduce.reduce import map_reduce
from tfcluster.programs.map_reduce.session_pool import Computation, SessionPool

__all__ = ["Computation", "DeviceLostError", "Progress", "SessionPool", "ShardResult", "map_reduce", "map_shards"]
