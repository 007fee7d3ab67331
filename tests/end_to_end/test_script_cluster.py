"""A script on the cluster of TensorFlow's own guide: a chief, a ps and workers, each of them a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Sandbox, make_sandbox

STRATEGY = """
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    weight = tf.Variable(0.0)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

def read_numbers(context):
    return tf.data.Dataset.range(100).batch(4)

@tf.function
def distribute_numbers():
    return strategy.distribute_datasets_from_function(read_numbers)

@tf.function
def step(numbers):
    def add(batch):
        weight.assign_add(1.0)
        return tf.reduce_sum(batch)
    return strategy.run(add, args=(next(numbers),))

numbers = iter(coordinator.create_per_worker_dataset(distribute_numbers))
sums = [coordinator.schedule(step, args=(numbers,)) for _ in range(10)]
coordinator.join()
print("weight", weight.numpy(), weight.device)
print("sums of batches:", all(int(each.fetch()) >= 6 for each in sums))
file = open("result.txt", "w")
file.write("42")
def result(): return file  # its sessions and threads are still there when the interpreter ends and closes it
"""
SESSIONS = """
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
"""


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with make_sandbox(tmp_path_factory.mktemp("guide")) as sandbox:
        counts = {"chief": 1, "ps": 1, "worker": 2, "evaluator": 1, "tuner": 1}
        jobs = "".join(f"  {job}: {{tasks: {count}}}\n" for job, count in counts.items())
        sandbox("up", sandbox.spec(f"name: guide\njobs:\n{jobs}", warm=True))
        yield sandbox


def test_a_parameter_server_strategy_has_the_script_as_its_chief(guide: Sandbox) -> None:
    guide.spec(STRATEGY, "strategy.py")
    result = guide("run", "script", "--timeout", "80", "strategy.py")
    printed = [line for line in result.stdout.splitlines() if line.startswith(("weight", "sums"))]
    assert printed == ["weight 10.0 /job:ps/replica:0/task:0/device:CPU:0", "sums of batches: True"]
    assert "note: TF_CONFIG leaves out tuner: strategies refuse other jobs" in result.stderr
    assert (guide.folder / "result.txt").read_text() == "42"
    assert "cuInit" not in result.stdout + result.stderr, "the fork server has looked for GPUs already"


# Whether it runs in a fork of the fork server, which no fresh interpreter imports.
LOOK = "import sys\nprint('tfcluster.processes.runs.fork_server' in sys.modules)\n"


def test_a_session_connects_to_the_server_of_the_chief(guide: Sandbox) -> None:
    guide.spec(SESSIONS, "sessions.py")
    printed = guide("run", "script", "--timeout", "80", "sessions.py").stdout.splitlines()
    assert [line for line in printed if line.startswith(("step", "sum"))] == ["step 1", "step 2", "step 3", "sum 3"]


def test_a_fresh_interpreter_if_it_is_asked_for(guide: Sandbox) -> None:
    guide.spec(LOOK, "look.py")
    assert guide("run", "script", "--cold", "look.py").stdout == "False\n"


def test_a_fresh_interpreter_if_a_module_in_the_folder_hides_an_imported_one(guide: Sandbox) -> None:
    guide.spec(LOOK, "look.py")
    (guide.folder / "wrapt.npy").touch()  # no module: data that has the name of one
    assert guide("run", "look.py").stdout == "True\n"
    (guide.folder / "wrapt.py").touch()
    try:
        assert guide("run", "look.py").stdout == "False\n"
    finally:
        (guide.folder / "wrapt.py").unlink()
