"""`threads:` of a job, and the note about tasks that compute with more threads than a quota allows to run."""

from __future__ import annotations

import json
import math
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.conftest import COMMAND, Sandbox, skip
from tests.control_groups import cpu_group

SPEC = "name: few\njobs:\n  ps: {tasks: 1, threads: 1}\n  worker: {tasks: 1, threads: 3, env: {OMP_NUM_THREADS: '2'}}\n"
CLUSTER = Cluster(SPEC)
# Says how many threads TensorFlow and OpenMP are told to compute with.
SHOW = "import os\nprint(os.environ['TF_NUM_INTRAOP_THREADS'], os.environ['OMP_NUM_THREADS'])\n"
# Says how many threads the pool of TensorFlow's operations has.
COUNT = """
import pathlib
import tensorflow as tf
tf.constant(1) + tf.constant(1)
print([path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")].count("tf_Compute\\n"))
"""
NAMES_THREADS = not version("tensorflow").startswith("2.14.")  # its threads have the name of their process


def pool_of(pid: int) -> int:
    """Return how many threads run operations of a server."""
    return [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")].count("tf_Compute\n")


def test_threads_limits_servers_and_members(cluster: Sandbox) -> None:
    if NAMES_THREADS:
        assert {task: pool_of(pid) for task, pid in cluster.tasks("pid").items()} == {"ps:0": 1, "worker:0": 3}
    cluster.spec(SHOW, "show.py")
    assert cluster("launch", "--cold", "show.py").stdout == "worker:0 | 3 2\n"
    cluster.spec(SPEC.replace("threads: 3", "threads: 4"))
    assert "threads 3 -> 4" in cluster("up", "--dry-run").stdout
    cluster.spec(SPEC)


@pytest.mark.slow
@pytest.mark.skipif(not NAMES_THREADS, reason="threads have the name of their process")
def test_tensorflow_computes_with_the_threads_of_a_member(cluster: Sandbox) -> None:
    cluster.spec(COUNT, "count.py")
    assert cluster("launch", "count.py", timeout=280).stdout.endswith("worker:0 | 3\n")


@pytest.mark.needs("root")
def test_more_threads_than_the_quota_of_a_control_group_have_a_note(sandbox: Sandbox) -> None:
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        skip("a quota below one core is no matter of threads")
    quota = f"the quota of its control group is {cores - 0.5:g} of {cores} cores"
    note = f"{quota}, and 2 tasks there compute with {2 * cores} threads"
    fitting = f"`threads: {max(1, math.floor((cores - 0.5) / 2))}`"
    spec = sandbox.spec("name: few\njobs: {worker: {tasks: 2}}\n")
    with cpu_group(cores - 0.5) as group:
        result = sandbox.execute(*COMMAND, "doctor", spec, "-o", "json", preexec_fn=group.join)
        (found,) = [each for each in json.loads(result.stdout)["checks"] if each["check"] == "threads"]
        assert found["ok"]
        assert note in found["result"]
        assert fitting in found["hint"]
        started = sandbox.execute(*COMMAND, "up", spec, preexec_fn=group.join)
        assert started.returncode == 0
        assert f"note: this machine: {note}" in started.stderr
        sandbox("down")
