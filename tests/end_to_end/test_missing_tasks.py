"""Runs on a cluster with a task down: they do without it, and a failure names it."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.clusters import Cluster
from tests.conftest import Sandbox, wait_for

SPEC = "name: partial\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\nrestart: {policy: never}\n"
DEAD = "worker:1 died (SIGKILL) and has failed"


CLUSTER = Cluster(SPEC)


@pytest.fixture(scope="module")
def partial(cluster: Sandbox) -> Sandbox:
    """The cluster after its worker:1 has failed; the tests leave it so."""
    kill(cluster, "worker:1")
    return cluster


def kill(sandbox: Sandbox, task: str) -> None:
    os.kill(sandbox.task(task, code=None)["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.task(task, code=None)["state"] == "failed")


@pytest.mark.slow
def test_a_run_does_without_a_task_that_it_does_not_need(partial: Sandbox) -> None:
    result = partial.json("run", "pi", "--samples", "1e5", "--seed", "7")
    assert list(result["devices"]) == ["/job:worker/task:0/device:CPU:0"]
    assert result["notes"] == [f"{DEAD}: running without it"]
    shown = partial("run", "pi", "--samples", "1e5")
    assert shown.stderr.startswith(f"note: {DEAD}: running without it\n")
    assert "note:" not in shown.stdout
    assert "note:" not in partial("run", "pi", "--samples", "1e5", "--devices", "/job:ps").stderr, "it does not use it"
    partial("run", "expfit", "--mode", "data-parallel", "--steps", "5")


@pytest.mark.slow
def test_a_run_that_needs_a_task_which_is_down_names_it(partial: Sandbox) -> None:
    device = "/job:worker/task:1"
    for words in (("pi", "--devices", device), ("pi", "--strict"), ("graph", "x = 1", "--device", f"x={device}")):
        assert DEAD in partial("run", *words, code=4).stderr
    assert "run" not in {run["program"] for run in partial.status(code=4)["runs"]}


def test_a_script_runs_and_is_told_which_task_is_down(partial: Sandbox) -> None:
    result = partial("run", partial.spec("print('hello')\n", "hello.py"))
    assert result.stdout == "hello\n"
    assert f"note: {DEAD}: running without it" in result.stderr.splitlines()


SLOW = pytest.mark.slow
FAILS = """
import os, signal, sys
sys.stdin.readline()
os.kill(int(sys.argv[1]), signal.SIGSTOP)  # it does not answer in time, as on a busy machine
raise RuntimeError("Socket closed")
"""


@pytest.mark.parametrize(("policy", "state"), [("on-failure", "ready"), pytest.param("never", "failed", marks=SLOW)])
def test_the_first_cause_is_named_first_and_nothing_else(sandbox: Sandbox, policy: str, state: str) -> None:
    jobs = f"jobs:\n  ps: {{tasks: 2}}\n  worker: {{tasks: 2}}\nrestart: {{policy: {policy}}}\n"
    sandbox("up", sandbox.spec(f"name: lost\n{jobs}"))
    pids = sandbox.tasks("pid")
    run = sandbox.start("run", "-o", "json", sandbox.spec(FAILS, "train.py"), str(pids["worker:1"]), stdin=-1)
    first = json.loads(run.stdout.readline())
    os.kill(pids["ps:1"], signal.SIGKILL)
    wait_for(lambda: sandbox.task("ps:1", code=None)["last_exit"])
    wait_for(lambda: sandbox.task("ps:1", code=None)["state"] == state)
    try:
        *events, result = map(json.loads, run.communicate("\n", timeout=60)[0].splitlines())
    finally:
        os.kill(pids["worker:1"], signal.SIGCONT)
    lost = "ps:1 died (SIGKILL) and lost its variables" + (" and has failed" if state == "failed" else "")
    assert [event["problem"] for event in events if event["event"] == "task_down"] == [lost]
    start = "`tfcluster restart ps:1`, then " if state == "failed" else ""
    assert result["error"]["message"] == f"{lost}\nafter that, train.py failed: RuntimeError: Socket closed"
    assert result["error"]["hint"].startswith(f"{start}`tfcluster rerun {first['run']}` runs it again")


#: A fault: worker:1 dies after it has been probed, before the run is recorded.
DIES_BEFORE = """
import asyncio, os, signal
_plan_run = plan_run

async def plan_run(context, request):
    plan = await _plan_run(context, request)
    report, reported = context.runs.on_task_health, asyncio.Event()
    context.runs.on_task_health = lambda every, down: (report(every, down), down and reported.set())
    os.kill(context.supervisor.tasks["/job:worker/task:1"].process.pid, signal.SIGKILL)
    await reported.wait()
    return plan
"""


def test_a_task_that_dies_while_a_run_is_submitted_is_named(sandbox: Sandbox) -> None:
    env = sandbox.with_fault("tfcluster.agent.handlers.runs", DIES_BEFORE)
    sandbox("up", sandbox.spec("name: lost\njobs: {worker: {tasks: 2}}\nrestart: {policy: never}\n"), env=env)
    result = sandbox("run", sandbox.spec("print(1)", "train.py"))
    assert f"note: {DEAD}\n" in result.stderr


@pytest.mark.slow
def test_a_task_that_answers_again_joins_the_run(sandbox: Sandbox) -> None:
    # Without `never`, a stopped server is killed as unresponsive before a slow machine's run has begun.
    sandbox("up", sandbox.spec("name: late\njobs: {worker: {tasks: 2}}\nrestart: {policy: never}\n"))
    pid = sandbox.task("worker:1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        run = sandbox.start("run", "mean", "--random", "2e9", "-o", "json")
        events = (json.loads(line) for line in run.stdout)
        next(event for event in events if event["event"] == "progress")
    finally:
        os.kill(pid, signal.SIGCONT)
    result = list(events)[-1]
    run.wait()
    assert result["state"] == "succeeded"
    assert "worker:1" in result["notes"][0]
    assert result["notes"][0].endswith(": running without it")
    assert result["notes"][1:] == ["worker:1 answers now, and has joined the run"]
    assert all(result["devices"][f"/job:worker/task:{index}/device:CPU:0"]["ops"] for index in (0, 1))
