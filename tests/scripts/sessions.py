"""Trains in sessions on the server of the chief."""

import tensorflow.compat.v1 as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
with tf.Graph().as_default():
    with tf.device(tf.train.replica_device_setter(cluster=resolver.cluster_spec())):
        step = tf.train.get_or_create_global_step()
        advance = tf.assign_add(step, 1)
    hooks = [tf.train.StopAtStepHook(3)]
    with tf.train.MonitoredTrainingSession(resolver.master(), is_chief=True, hooks=hooks) as session:
        while not session.should_stop():
            print("step", session.run(advance))
with tf.Graph().as_default(), tf.Session(resolver.master()) as session:
    print("sum", session.run(tf.constant(1) + 2))
