"""run mean, and what survives a lost task: the same bits from one to eight tasks, with tasks killed in mid run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clusters import Cluster
from tests.conftest import ROOT, Sandbox

pytestmark = pytest.mark.slow

EIGHT = """
name: eight
jobs: {worker: {tasks: 5}, local: {tasks: 2}, master: {tasks: 1}}
restart: {policy: on-failure, backoff: {initial: 0.1, max: 0.5}, limit: 100 in 60}
"""


CLUSTER = Cluster(EIGHT, warm=True)


def mean(sandbox: Sandbox, *arguments: str | Path) -> Any:
    return sandbox.json("run", "mean", *arguments)["result"]


def test_one_to_eight_tasks_give_the_same_bits(cluster: Sandbox) -> None:
    path = cluster.folder / "numbers.npy"
    values = np.random.default_rng(1).normal(1e3, 2, 1009)
    np.save(path, values)
    moments = set()
    for patterns, slices, tasks in (
        (["/job:worker/task:0"], "even", 1),
        (["/job:local", "/job:master"], "even", 3),
        (["/job:*"], "even", 8),
        (["/job:*"], "10,30,969", 3),
    ):
        devices = [word for pattern in patterns for word in ("--devices", pattern)]
        result = mean(cluster, path, "--slices", slices, *devices)
        moments.add((result["mean"], result["variance"]))
        assert len({shard["task"] for shard in result["shards"]}) == tasks
        start = 0
        for shard in result["shards"]:
            assert shard["mean"] == pytest.approx(values[start : start + shard["count"]].mean(), rel=1e-13)
            start += shard["count"]
        assert start == len(values)
    assert len(moments) == 1
    assert moments.pop() == (pytest.approx(values.mean(), rel=1e-14), pytest.approx(values.var(), rel=1e-12))


def test_the_example_script_that_uses_map_reduce(cluster: Sandbox) -> None:
    result = cluster.json_lines("run", ROOT / "examples" / "sum_of_squares.py")[-1]
    log = cluster.folder / "state" / "tfcluster" / "eight" / "localhost" / "runs" / result["run"] / "output.log"
    assert "is 1686874309 modulo 2^31 - 1" in log.read_text()
    assert sum(work["shards"] for work in result["devices"].values()) == 1000


TWO = ("--seed", "5", "--devices", "/job:worker/task:0", "--devices", "/job:worker/task:1")
MOMENTS = ("mean", "variance", "count")
LONG = ("mean", "--random", "3e8", *TWO)


def run_and_kill(sandbox: Sandbox, share: float, *arguments: str) -> Any:
    """Run a program, kill worker:1 when more than a share of the work is done, and give the result event."""
    victim = sandbox.task("worker:1")["pid"]
    process = sandbox.start("run", *arguments, "-o", "json")
    event: dict[str, Any] = {}
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "progress" and event["done"] > share * event["total"]:
            os.kill(victim, signal.SIGKILL)
            break
    output, error = process.communicate(timeout=90)
    assert process.returncode == 0, error
    sandbox.wait_until("running")
    return json.loads(output.splitlines()[-1]) if output else event


def assert_a_kill_costs_no_bit(sandbox: Sandbox, whole: Any, *arguments: str) -> None:
    """Kill a task in runs that are as another one was, until one had to do something again."""
    assert whole["notes"] == []
    for share in (1 / 3, 1 / 20, 0, 0, 0):  # on a fast machine the task may have had nothing left to do
        result = run_and_kill(sandbox, share, *arguments)
        assert [result["result"][key] for key in MOMENTS] == [whole["result"][key] for key in MOMENTS]
        if result["notes"]:
            break
        sandbox("restart", "worker:1")  # which counts its restarts from zero
    assert result["notes"] == ["worker:1 was lost; its work in progress was done again"]


def test_a_task_that_is_killed_in_mid_run_costs_no_bit(demo: Sandbox) -> None:
    whole = demo.json("run", *LONG)
    assert_a_kill_costs_no_bit(demo, whole, *LONG)


def test_a_task_that_is_killed_while_it_maps_more_than_two_gigabytes(cluster: Sandbox) -> None:
    path = cluster.folder / "large.npy"
    count = 2**31 + 5
    array = np.lib.format.open_memmap(path, "w+", "u1", (count,))  # holes, which take no place on the disk
    array[[0, 2**30, 2**31 - 1, 2**31, count - 1]] = 200
    array.flush()
    arguments = ("mean", str(path), "--slices", "devices", *TWO)
    whole = cluster.json("run", *arguments)
    assert (whole["result"]["mean"], whole["result"]["count"]) == (pytest.approx(1000 / count, rel=1e-14), count)
    assert_a_kill_costs_no_bit(cluster, whole, *arguments)
