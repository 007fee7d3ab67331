"""A script on the cluster of TensorFlow's own guide: a chief, a ps and workers, each of them a server."""

from __future__ import annotations

from tests.clusters import Cluster
from tests.conftest import SCRIPTS, Sandbox

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


CLUSTER = Cluster(
    """name: guide
jobs:
  chief: {tasks: 1}
  ps: {tasks: 1}
  worker: {tasks: 2}
  evaluator: {tasks: 1}
  tuner: {tasks: 1}
""",
    warm=True,
)


def test_a_parameter_server_strategy_has_the_script_as_its_chief(cluster: Sandbox) -> None:
    cluster.spec((SCRIPTS / "guide_strategy.py").read_text(), "strategy.py")
    result = cluster("run", "script", "--timeout", "80", "strategy.py")
    printed = [line for line in result.stdout.splitlines() if line.startswith(("weight", "sums"))]
    assert printed == ["weight 10.0 /job:ps/replica:0/task:0/device:CPU:0", "sums of batches: True"]
    assert "note: TF_CONFIG leaves out tuner: strategies refuse other jobs" in result.stderr
    assert (cluster.folder / "result.txt").read_text() == "42"
    assert "cuInit" not in result.stdout + result.stderr, "the fork server has looked for GPUs already"


# Whether it runs in a fork of the fork server, which no fresh interpreter imports.
LOOK = "import sys\nprint('tfcluster.processes.runs.fork_server' in sys.modules)\n"


def test_a_session_connects_to_the_server_of_the_chief(cluster: Sandbox) -> None:
    cluster.spec(SESSIONS, "sessions.py")
    printed = cluster("run", "script", "--timeout", "80", "sessions.py").stdout.splitlines()
    assert [line for line in printed if line.startswith(("step", "sum"))] == ["step 1", "step 2", "step 3", "sum 3"]


def test_a_fresh_interpreter_if_it_is_asked_for(cluster: Sandbox) -> None:
    cluster.spec(LOOK, "look.py")
    assert cluster("run", "script", "--cold", "look.py").stdout == "False\n"


def test_a_fresh_interpreter_if_a_module_in_the_folder_hides_an_imported_one(cluster: Sandbox) -> None:
    cluster.spec(LOOK, "look.py")
    (cluster.folder / "wrapt.npy").touch()  # no module: data that has the name of one
    assert cluster("run", "look.py").stdout == "True\n"
    (cluster.folder / "wrapt.py").touch()
    try:
        assert cluster("run", "look.py").stdout == "False\n"
    finally:
        (cluster.folder / "wrapt.py").unlink()
