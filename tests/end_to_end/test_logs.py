"""logs: what the tasks print, the last lines of it, and what comes next."""

from __future__ import annotations

import json
import os
import signal

from tests.conftest import Sandbox, wait_for


def test_logs_of_all_of_one_and_of_a_job(demo: Sandbox) -> None:
    whole = demo("logs").stdout
    for task in ("ps:0    ", "worker:0", "worker:1"):
        assert any(
            line.startswith(f"{task} | ") and "Started server with target: grpc://localhost:" in line
            for line in whole.replace("ps:0 |", "ps:0     |").splitlines()
        ), task
    for name in ("worker:1", "/job:worker/task:1"):
        assert {line.partition(" ")[0] for line in demo("logs", name).stdout.splitlines()} == {"worker:1"}
    of_job = demo("logs", "worker", "-n", "1").stdout.splitlines()
    assert [line.partition(" ")[0] for line in of_job] == ["worker:0", "worker:1"]
    assert demo("logs", "-n", "0").stdout == ""


def test_logs_as_json(demo: Sandbox) -> None:
    line = json.loads(demo("logs", "ps", "-n", "1", "-o", "json").stdout)
    assert list(line) == ["task", "line"]
    assert line["task"] == "ps:0"


def test_logs_of_an_unknown_task(demo: Sandbox) -> None:
    error = demo("logs", "worker:7", code=2).stderr
    assert error == "error: no task 'worker:7'\nhint: The tasks are ps:0, worker:0, worker:1.\n"


def test_logs_follow_across_a_restart(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: one\njobs:\n  worker: {tasks: 1}\n"))
    following = sandbox.start("logs", "-f", "-n", "1")
    assert following.stdout is not None
    following.stdout.readline()
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    while "Started server" not in following.stdout.readline():
        continue
    following.send_signal(signal.SIGINT)
    assert following.wait(10) == 130
    following.communicate()


def test_logs_stay_readable_after_down_and_a_broken_pipe_is_no_error(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: gone\njobs:\n  worker: {tasks: 1}\n"))
    sandbox("down")
    assert "Started server" in sandbox("logs", "-c", "gone").stdout
    assert "'never'" in sandbox("logs", "-c", "never", code=3).stderr
    reader = sandbox.start("logs", "-c", "gone")
    assert reader.stdout is not None
    reader.stdout.close()
    assert reader.wait(30) in (0, 1)
    assert reader.stderr is not None
    assert "Traceback" not in reader.stderr.read()
    reader.stderr.close()
    wait_for(lambda: not sandbox.leftovers(), seconds=15)
