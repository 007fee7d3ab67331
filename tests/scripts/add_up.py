"""Members of a launch add up what all of them have, again and again."""

import time

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    own = tf.Variable(2.0)

total = tf.function(
    lambda: strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", own.read_value()))
)
for _ in range(1000):
    print("total", float(strategy.experimental_local_results(total())[0]))
    time.sleep(0.2)
