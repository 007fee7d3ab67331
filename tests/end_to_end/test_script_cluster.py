"""A script on the cluster of TensorFlow's own guide: a chief, a ps and workers, each of them a server."""

from __future__ import annotations

import os
import signal

import pytest

from tests.clusters import Cluster
from tests.conftest import SCRIPTS, Sandbox, read_until, wait_for

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
    result = cluster("run", "script", "--timeout", "80", SCRIPTS / "guide_strategy.py")
    printed = [line for line in result.stdout.splitlines() if line.startswith(("weight", "sums"))]
    assert printed == ["weight 10.0 /job:ps/replica:0/task:0/device:CPU:0", "sums of batches: True"]
    assert "note: TF_CONFIG leaves out tuner: strategies refuse other jobs" in result.stderr
    assert (cluster.folder / "result.txt").read_text() == "42"
    assert "cuInit" not in result.stdout + result.stderr, "the fork server has looked for GPUs already"


def test_a_session_connects_to_the_server_of_the_chief(cluster: Sandbox) -> None:
    printed = cluster("run", "script", "--timeout", "80", SCRIPTS / "sessions.py").stdout.splitlines()
    assert [line for line in printed if line.startswith(("step", "sum"))] == ["step 1", "step 2", "step 3", "sum 3"]


@pytest.mark.slow
def test_a_training_killed_with_its_worker_does_not_keep_the_next_ones_from_training(cluster: Sandbox) -> None:
    """The ps remembers the context of a client that has gone for ten minutes."""
    command = cluster.start("run", SCRIPTS / "trains.py", "never")
    read_until(command.stdout, "weight 5.0")
    os.kill(cluster.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: cluster.task("worker:0", code=None)["restarts"])
    cluster.wait_until("running")
    at_once = [cluster.start("run", SCRIPTS / "trains.py") for _ in range(2)]
    for each in at_once:
        out, err = each.communicate(timeout=120)
        assert "weight 5.0" in out, err
