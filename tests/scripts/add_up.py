"""Members of a launch add up what all of them have, again and again."""

import functools
import time

import tensorflow as tf
from tensorflow.python.eager.context import Context

# Half as long as by default, after which a member that does not answer ends the others.
sooner = functools.partialmethod(Context.configure_coordination_service, heartbeat_timeout_in_ms=5000)
Context.configure_coordination_service = sooner
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    own = tf.Variable(2.0)

total = tf.function(
    lambda: strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", own.read_value()))
)
for _ in range(1000):
    print("total", float(strategy.experimental_local_results(total())[0]))
    time.sleep(0.2)
