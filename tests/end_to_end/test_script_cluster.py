"""Programs find the cluster: scripts on that of TensorFlow's own guide, and `connect()` in any Python process."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.clusters import Cluster
from tests.conftest import SCRIPTS, Sandbox, read_until, wait_for

#: A chief, a ps and workers, each of them a server.
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


def python(sandbox: Sandbox, program: str) -> str:
    """Return what a program prints in a Python process of its own, which has only tfcluster's folders."""
    proxy = {"https_proxy": "http://127.0.0.1:9"}
    result = sandbox.execute(sys.executable, "-c", program, env=proxy, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_strategy_and_a_session_find_the_cluster_in_spite_of_a_proxy(demo: Sandbox) -> None:
    output = python(demo, (SCRIPTS / "connected_strategy.py").read_text())
    assert output.split() == ["/job:ps/replica:0/task:0/device:CPU:0", "21.0"]


def test_runs_return_their_results(demo: Sandbox) -> None:
    (demo.folder / "hello.py").write_text("import sys; print('hello', *sys.argv[1:]); print('err', file=sys.stderr)")
    (demo.folder / "fails.py").write_text("raise ValueError('no such thing')")
    output = python(demo, (SCRIPTS / "connected_runs.py").read_text()).splitlines()
    assert output[0] == "hello you --there"
    assert "no such thing" in output[1]
    assert output[2:] == ["2", "2", "2"]


def test_a_script_finds_the_cluster_that_it_runs_on(demo: Sandbox) -> None:
    (demo.folder / "asks.py").write_text("import tfcluster; print(tfcluster.connect().run('graph', '1 + 1')['value'])")
    assert demo("run", "asks.py").stdout == "2\n"


@pytest.mark.slow
def test_runs_work_in_a_thread(demo: Sandbox) -> None:
    program = """
import tfcluster
from concurrent.futures import ThreadPoolExecutor
cluster = tfcluster.connect()
with ThreadPoolExecutor() as pool:
    print([r["inside"] for r in pool.map(lambda seed: cluster.run("pi", samples=1e5, seed=seed), [3, 3])])
"""
    first, second = json.loads(python(demo, program))
    assert first == second
