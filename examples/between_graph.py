r"""A trainer as TensorFlow 1 has them: each worker builds the graph and runs it at its own speed; the ps has variables.

tfcluster launch --spec examples/cluster.yaml --each ps,worker --max-restarts 3 examples/between_graph.py \
    --job_name={job} --task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts} --checkpoints=trained
"""

import time

import tensorflow.compat.v1 as tf

EXAMPLES, BATCH = 64, 16

flags = tf.app.flags
flags.DEFINE_string("job_name", "", "`ps` or `worker`")
flags.DEFINE_integer("task_index", 0, "the index of this task in its job")
flags.DEFINE_string("ps_hosts", "", "the addresses of the ps tasks, separated by commas")
flags.DEFINE_string("worker_hosts", "", "the addresses of the workers, separated by commas")
flags.DEFINE_string("checkpoints", "checkpoints", "a folder, of the first worker alone")
flags.DEFINE_integer("steps", 1000, "the steps of all workers together")
options = flags.FLAGS


class PrintStep(tf.train.SessionRunHook):
    """Prints the loss now and then."""

    def __init__(self, step: tf.Tensor, loss: tf.Tensor) -> None:
        self.fetches = [step, loss]
        self.printed = 0

    def before_run(self, context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Have the step and the loss computed."""
        return tf.train.SessionRunArgs(self.fetches)

    def after_run(self, context: tf.train.SessionRunContext, values: tf.train.SessionRunValues) -> None:
        """Print them."""
        step, loss = values.results
        if step >= self.printed + 100:
            self.printed = step
            print(f"step {step}: loss {loss:.6f}")


def wait_for_variables(master: str, config: tf.ConfigProto) -> None:
    """Wait until the first worker has initialized the variables; MonitoredTrainingSession looks only every 30 s."""
    uninitialized = tf.report_uninitialized_variables()
    with tf.Session(master, config=config) as session:
        while session.run(uninitialized).size > 0:
            time.sleep(0.1)


def main(_: list[str]) -> None:
    """Serve, as a ps, or train."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    cluster = tf.train.ClusterSpec({"ps": options.ps_hosts.split(","), "worker": options.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=options.job_name, task_index=options.task_index)
    if options.job_name == "ps":
        server.join()

    worker = f"/job:worker/task:{options.task_index}"
    with tf.Graph().as_default(), tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("weight", [1, 1], initializer=tf.zeros_initializer())
        bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
        x = tf.random.uniform([BATCH, 1], -1.0, 1.0, seed=options.task_index)
        loss = tf.reduce_mean((tf.matmul(x, weight) + bias - (3.0 * x - 1.0)) ** 2)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)

        # Without a filter, a worker would wait for the others, also for one that has finished.
        config = tf.ConfigProto(device_filters=["/job:ps", worker])
        if options.task_index > 0:
            wait_for_variables(server.target, config)
        with tf.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=options.task_index == 0,
            checkpoint_dir=options.checkpoints,
            save_checkpoint_steps=100,
            hooks=[tf.train.StopAtStepHook(last_step=options.steps), PrintStep(step, loss)],
            config=config,
        ) as session:
            while not session.should_stop():
                session.run(train)
    if options.task_index == 0:
        trained = tf.train.load_checkpoint(options.checkpoints)
        print(f"y = {trained.get_tensor('weight').item():.4f} x + {trained.get_tensor('bias').item():.4f}")


if __name__ == "__main__":
    tf.app.run(main)
