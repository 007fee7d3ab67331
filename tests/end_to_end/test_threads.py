"""`threads:` of a job, and the note about tasks that compute with more threads than a quota allows to run."""

from __future__ import annotations

import json
import math
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Sandbox, skip
from tests.control_groups import cpu_group

SPEC = "name: few\njobs:\n  ps: {tasks: 1, threads: 1}\n  worker: {tasks: 1, threads: 3, env: {OMP_NUM_THREADS: '2'}}\n"
# Says how many threads the pool of TensorFlow's operations has, and what OpenMP is told.
COUNT = """
import json, os, pathlib
import tensorflow as tf
tf.constant(1) + tf.constant(1)
names = [(path / "comm").read_text() for path in pathlib.Path("/proc/self/task").iterdir()]
print(json.dumps([names.count("tf_Compute\\n"), os.environ["TF_NUM_INTRAOP_THREADS"], os.environ["OMP_NUM_THREADS"]]))
"""


NAMES_THREADS = not version("tensorflow").startswith("2.14.")  # its threads have the name of their process


def pool_of(pid: int) -> int:
    """Return how many threads run operations of a server."""
    return [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")].count("tf_Compute\n")


def test_threads_limits_servers_and_members(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec)
    if NAMES_THREADS:
        assert {task: pool_of(pid) for task, pid in sandbox.tasks("pid").items()} == {"ps:0": 1, "worker:0": 3}
    sandbox.spec(COUNT, "count.py")
    (line,) = [line for line in sandbox("launch", "count.py", timeout=300).stdout.splitlines() if " | [" in line]
    assert json.loads(line.partition(" | ")[2]) == [3 if NAMES_THREADS else 0, "3", "2"]
    sandbox.spec(SPEC.replace("threads: 3", "threads: 4"))
    assert "threads 3 -> 4" in sandbox("up", "--dry-run").stdout
    sandbox("down")


@pytest.mark.needs("root")
def test_more_threads_than_the_quota_of_a_control_group_have_a_note(sandbox: Sandbox) -> None:
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        skip("a quota below one core is no matter of threads")
    quota = f"the quota of its control group is {cores - 0.5:g} of {cores} cores"
    note = f"{quota}, and 2 tasks there compute with {2 * cores} threads"
    fitting = f"`threads: {max(1, math.floor((cores - 0.5) / 2))}`"
    spec = sandbox.spec("name: few\njobs: {worker: {tasks: 2}}\n")
    assert "the quota of its control group" not in sandbox("doctor", spec).stdout
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
