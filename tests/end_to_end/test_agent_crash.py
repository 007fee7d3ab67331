"""Agents that die: the next one adopts what is the cluster's, nothing else, and goes on with what was counted."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Sandbox, running, wait_for
from tfcluster.agent.ports import PortAllocator
from tfcluster.os import procfs
from tfcluster.runtime_dir import locks_dir

SPEC = "name: heir\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def journal_of(sandbox: Sandbox) -> Path:
    return next(sandbox.folder.glob("state/tfcluster/*/*/journal.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("bare_fork_server")
def test_the_status_has_the_runs_that_ended_before_the_agent_died(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    script = sandbox.spec("print('done')\n", "script.py")
    sandbox("up", spec)
    for _ in range(2):
        sandbox("run", script)
    sandbox("run", "pi", "--samples", "-1", code=2)
    before = sandbox.status()["runs"]
    assert [run["state"] for run in before] == ["succeeded", "succeeded"]
    sandbox.kill_agent()
    assert sandbox.status()["runs"] == before
    assert all(run["run"] in sandbox("status").stdout for run in before)
    sandbox("run", script)
    assert [run["run"] for run in sandbox.status()["runs"]][:2] == [run["run"] for run in before]
    assert len(sandbox.status()["runs"]) == len(sandbox.json("runs")) == 3

    sandbox("down")
    sandbox("up", spec)
    sandbox.kill_agent()
    assert sandbox.status()["runs"] == [], "those are runs of an earlier cluster"
    assert len(sandbox.json("runs")) == 3


@pytest.mark.slow
def test_every_command_finds_the_cluster_of_an_agent_that_died(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec)
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][1]["restarts"])
    before = {task["task"]: (task["pid"], task["restarts"], task["address"]) for task in sandbox.status()["tasks"]}
    commands = (["up", spec], ["status"], ["logs"], ["events"], ["run", "pi", "--samples", "1e5"])
    for command in commands:
        sandbox.kill_agent()
        sandbox(*command)
    status = sandbox.wait_until("running")
    assert {task["task"]: (task["pid"], task["restarts"], task["address"]) for task in status["tasks"]} == before
    sandbox.kill_agent()
    sandbox("down")
    assert sandbox.leftovers() == []
    events = [json.loads(line) for line in sandbox("events", "-c", "heir", "-o", "json").stdout.splitlines()]
    assert [event["event"] for event in events].count("agent-started") == len(commands) + 1
    assert sandbox.leftovers() == [], "an agent that only read the events has ended before its command"


@pytest.mark.slow
def test_an_adopted_server_that_dies_is_started_again_at_its_port(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    sandbox.kill_agent()
    before = sandbox.task("worker:1")
    port = int(before["address"].rpartition(":")[2])
    stranger = PortAllocator()
    assert not stranger.reserve(port)
    os.kill(before["pid"], signal.SIGKILL)
    after = wait_for(lambda: next((task for task in sandbox.wait_until("running")["tasks"] if task["restarts"]), None))
    assert after["task"] == before["task"]
    assert after["address"] == before["address"]
    major, minor = map(int, os.uname().release.split(".")[:2])
    allowed = {"SIGKILL"} if (major, minor) >= (6, 15) else {"SIGKILL", "unknown exit"}
    assert after["last_exit"]["reason"] in allowed
    # And what it ended of is known to the next agent too.
    sandbox.kill_agent()
    assert sandbox.task("worker:1")["last_exit"] == after["last_exit"]
    assert sandbox.task("worker:1")["pid"] == after["pid"]


@pytest.mark.slow
def test_another_process_with_the_pid_of_a_task_is_neither_adopted_nor_killed(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: heir\njobs:\n  worker: {tasks: 2}\nrestart: {policy: never}\n"))
    sandbox.kill_agent()
    record: dict[str, Any] = json.loads(journal_of(sandbox).read_text())
    processes = [record["tasks"][f"/job:worker/task:{index}"]["process"] for index in range(2)]
    with running("sleep", "600", env={}) as stranger:
        os.kill(processes[0]["pid"], signal.SIGKILL)
        processes[0]["pid"] = stranger.pid  # that started at another time
        processes[1]["start_time"] += 1  # its own pid, as if somebody else had it now
        journal_of(sandbox).write_text(json.dumps(record))
        status = wait_for(lambda: failed if (failed := sandbox.status(code=4))["state"] == "failed" else None)
        assert [task["pid"] for task in status["tasks"]] == [None, None]
        assert {task["last_exit"]["reason"] for task in status["tasks"]} == {"unknown exit"}
        sandbox("down")
        assert stranger.poll() is None
        assert not sandbox.processes(), "`down` ends the server too, whose mark shows that it is the cluster's"
    wait_for(lambda: not sandbox.leftovers())


@pytest.mark.slow
def test_a_damaged_journal_is_read_from_its_copy(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    pids = [task["pid"] for task in sandbox.status()["tasks"]]
    sandbox.kill_agent()
    os.truncate(journal_of(sandbox), 100)
    assert [task["pid"] for task in sandbox.wait_until("running")["tasks"]] == pids


@pytest.mark.slow
def test_the_limit_of_restarts_holds_for_all_agents_together(sandbox: Sandbox) -> None:
    spec = sandbox.spec(
        "name: storm\njobs:\n  worker: {tasks: 2}\nrestart: {backoff: {initial: 1, max: 1}, limit: 5 in 600}\n"
    )
    log_buffers = sandbox.folder / "state/tfcluster/storm/localhost/log-buffers"
    (log_buffers / "worker:1").mkdir(parents=True)  # where it should print to: it ends as soon as it has started
    up = sandbox.start("up", spec)

    def count(event: str) -> int:
        answer = sandbox("events", "-c", "storm", "-o", "json", code=None).stdout
        events = [json.loads(line) for line in answer.splitlines()]
        return [each["event"] for each in events if each["task"] == "worker:1"].count(event)

    def ended(times: int) -> bool:
        return count("died") + count("failed") >= times

    agents = 0
    for ends in (1, 2, 4):  # in the middle of it, with some of its restarts made and some to come
        wait_for(partial(ended, ends))
        sandbox.kill_agent()
        sandbox("status", code=4)
        agents += 1
    up.communicate(timeout=60)
    status = wait_for(lambda: found if (found := sandbox.status(code=4))["tasks"][1]["state"] == "failed" else None)
    assert status["tasks"][1]["restarts"] == 5
    # An agent may have died after a fork and before the journal knew of it; such a fork does nothing.
    assert 6 <= count("started") <= 6 + agents
    sandbox.kill_agent()
    after = sandbox.status(code=4)
    assert after["tasks"][1] | {"uptime_s": None} == status["tasks"][1] | {"uptime_s": None}, "failed for all agents"
    assert after["tasks"][0]["pid"] == status["tasks"][0]["pid"]
    assert after["tasks"][0]["restarts"] == 0
    (log_buffers / "worker:1").rmdir()
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_the_next_agent_keeps_other_clusters_from_the_ports_of_adopted_servers(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: one\njobs:\n  worker: {tasks: 1}\n"))
    sandbox.kill_agent()
    (task,) = sandbox.status()["tasks"]
    # The folder is the same for all clusters of a user, whatever their state homes are.
    path = locks_dir() / f"port-{procfs.namespace('net')}-{task['address'].rpartition(':')[2]}.lock"
    with path.open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
