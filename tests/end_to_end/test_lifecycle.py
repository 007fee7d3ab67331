"""up, status, down: what starts, what is said of it, and that nothing is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXAMPLE, ROOT, Sandbox, wait_for

ONE_WORKER = "name: one\njobs:\n  worker: {tasks: 1}\n"


def test_the_four_commands_exactly(sandbox: Sandbox) -> None:
    began = time.time()
    sandbox("up", "examples/cluster.yaml", cwd=ROOT)
    assert began < sandbox.status()["started"] < time.time()
    run = sandbox("run", "pi", "--samples", "1e7", "--gpus", "4", cwd=ROOT)
    assert "pi = 3.14" in run.stdout
    assert "note: 4 GPU devices asked for, the cluster has 0: running on 2 CPU devices" in run.stdout
    status = sandbox("status", cwd=ROOT).stdout
    assert status.startswith("demo  running  TensorFlow ")
    assert [line.split()[0] for line in status.splitlines()[3:6]] == ["ps:0", "worker:0", "worker:1"]
    down = sandbox("down", cwd=ROOT)
    assert down.stdout == "demo is down: 3 tasks stopped\n"
    events = sandbox.json_lines("events", "-c", "demo")
    ends = [(event["event"], event["task"]) for event in events if event["event"] in ("stopping", "stopped")]
    assert ends[-2:] == [("stopping", "ps:0"), ("stopped", "ps:0")], "the ps goes last"
    assert sandbox.leftovers() == []


def test_status_json_is_the_contract(demo: Sandbox) -> None:
    status = demo.status()
    assert (status["cluster"], status["state"], status["spec"]) == ("demo", "running", str(EXAMPLE))
    (host,) = status["hosts"]
    assert (host["host"], host["state"]) == ("localhost", "up")
    assert host["load"]["cpus"] == os.cpu_count()
    assert 0 < host["load"]["memory_used_bytes"] < host["load"]["memory_total_bytes"]
    assert re.fullmatch(r"2\.\d+\.\d+", host["tensorflow"])
    assert [task["name"] for task in status["tasks"]] == ["ps:0", "worker:0", "worker:1"]
    for task in status["tasks"]:
        assert list(task) == [
            "task", "name", "job", "index", "host", "address", "state", "pid", "restarts", "uptime_s", "cpu_percent",
            "rss_bytes", "devices", "last_exit", "gpu_memory_bytes", "probe_error",
        ]  # fmt: skip
        assert task["task"] == f"/job:{task['job']}/task:{task['index']}"
        assert task["state"] == "ready"
        assert task["devices"] == [f"/job:{task['job']}/replica:0/task:{task['index']}/device:CPU:0"]
        assert task["rss_bytes"] > 10**7
        assert task["restarts"] >= 0
        assert re.fullmatch(r"localhost:\d+", task["address"])


def test_without_psutil_there_is_no_usage_and_all_else_works(sandbox: Sandbox) -> None:
    env = {"TEST_HIDDEN_MODULES": "matplotlib psutil"}
    assert (
        f"`{sys.executable} -m pip install psutil` there installs it."
        in sandbox("up", sandbox.spec(ONE_WORKER), env=env).stderr
    )
    status = sandbox.json("status", env=env)
    assert status["hosts"][0]["load"] is None
    assert [status["tasks"][0][name] for name in ("cpu_percent", "rss_bytes", "gpu_memory_bytes")] == [None] * 3
    assert sandbox("run", sandbox.spec("print('well')\n", "one.py"), env=env).stdout == "well\n"
    sandbox("down", env=env)


def test_servers_have_readable_titles_and_one_parent(demo: Sandbox) -> None:
    titles = demo.processes()
    assert {"tfcluster: demo ps:0", "tfcluster: demo worker:0", "tfcluster: demo worker:1"} <= set(titles.values())
    agent = demo.status()["hosts"][0]["agent_pid"]
    assert titles[agent] == "tfcluster: demo agent on localhost"
    assert len(list(Path(f"/proc/{agent}/task").iterdir())) == 1, "an agent with threads could not fork"


@pytest.mark.slow
def test_dry_run_prints_the_plan_and_leaves_nothing(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: dry\njobs:\n  ps: ['localhost:21987']\n  worker: {tasks: 1}\n")
    plan = sandbox("up", "--dry-run").stdout.splitlines()
    assert plan[0].split() == ["OPERATION", "TASK", "HOST", "ADDRESS", "CAUSE"]
    assert plan[1].split() == ["start", "ps:0", "localhost", "localhost:21987", "new"]
    assert re.fullmatch(r"start +worker:0 +localhost +localhost:\d+ +new *", plan[2])
    assert sandbox.leftovers() == []
    assert not list(sandbox.folder.glob("state/tfcluster/*")), "not even an empty folder"
    sandbox("up", spec)
    assert sandbox("up", "--dry-run").stdout == "dry is up already: nothing to do\n"


@pytest.mark.slow
def test_named_ports_can_be_taken_up_again_at_once(sandbox: Sandbox) -> None:
    spec = sandbox.spec("jobs:\n  worker: ['localhost:21985']\n")
    for _ in range(2):
        sandbox("up", spec)
        # A connection that the server's end closes lingers on the port for a minute.
        with socket.create_connection(("localhost", 21985)):
            os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
            wait_for(lambda: restarted(sandbox.wait_until("running")))
        sandbox("down")


def test_up_names_the_task_that_does_not_start_and_why(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: bad\njobs:\n  worker: {tasks: 2}\nrestart: {policy: never}\n")
    obstacle = sandbox.folder / "state/tfcluster/bad/localhost/log-buffers/worker:1"
    obstacle.mkdir(parents=True)
    error = sandbox("up", spec, code=4).stderr
    assert "cluster 'bad' is not ready" in error
    assert re.search(
        r"worker:1 at localhost:\d+ on localhost is failed \(exit code 1 at [-:\d ]+\): .*Is a directory", error
    )
    assert "worker:0 at" not in error.partition("error:")[2]
    obstacle.rmdir()
    assert "1 task started" in sandbox("up", spec).stdout, "up starts what failed, and only that"
    sandbox("down")


def restarted(status: Any) -> Any:
    """The first task that was started again."""
    return next((task for task in status["tasks"] if task["restarts"]), None)


@pytest.mark.slow
def test_web_proxies_do_not_get_between(sandbox: Sandbox) -> None:
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://127.0.0.1:9")
    sandbox("up", EXAMPLE, env=proxies)
    # It comes before the fork server is ready, waits for it, and not for ever.
    sandbox("run", "pi", "--samples", "1e5", "--timeout", "60", env=proxies)
