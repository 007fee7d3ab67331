"""MapReduce: map on the cluster's devices, reduce in the run's driver. A public API, which pi and mean also use.

The work is split into numbered shards, and each free device takes the next shard. A shard whose task was lost is
computed again, and the result is bit-identical regardless of which device computed it. In your own script:

    from tfcluster.programs.map_reduce import map_reduce

    total = map_reduce(lambda shard: tf.reduce_sum(tf.range(1000 * shard, 1000 * (shard + 1))), shards=500)

`map_reduce` is sufficient for most scripts. It is built on `map_shards`, which hands out shards to any function, and on
`SessionPool`, which runs a computation on each device in a separate session per task.
"""

from __future__ import annotations

from tfcluster.programs.map_reduce.executor import DeviceLostError, ShardResult, map_shards
from tfcluster.programs.map_reduce.progress import Progress
from tfcluster.programs.map_reduce.reduce import map_reduce
from tfcluster.programs.map_reduce.session_pool import Computation, SessionPool

__all__ = ["Computation", "DeviceLostError", "Progress", "SessionPool", "ShardResult", "map_reduce", "map_shards"]
