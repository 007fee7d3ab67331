"""A damaged journal: `down` always works, and logs and events can be read."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.test_journal import damage_by_pipe
from tests.conftest import PLAYED, Sandbox, make_sandbox, running, wait_for
from tfcluster.os.process_handle import ProcessHandle

SPEC = "name: hurt\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


#: tests/agent/test_journal.py has all kinds.
DAMAGE: dict[str, Callable[[Path], object]] = {"cut": lambda path: os.truncate(path, 100), "pipe": damage_by_pipe}


def journal_of(sandbox: Sandbox) -> Path:
    return sandbox.folder / "state/tfcluster/hurt/localhost/journal.json"


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_down_stops_what_runs(sandbox: Sandbox, damage: str) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec)
    before = sandbox.status()["tasks"]
    sandbox.kill_agent()
    DAMAGE[damage](journal_of(sandbox))
    for command in (["status"], ["run", "pi"], ["up", spec], ["restart", "ps:0", "--yes"]):
        error = sandbox(*command, code=1).stderr
        assert f"{journal_of(sandbox)} is damaged" in error
        assert re.search("`tfcluster down( -c hurt)?`", error)
    assert {line.split()[0] for line in sandbox("logs").stdout.splitlines()} == {"ps:0", "worker:0", "worker:1"}
    assert "Started server" in sandbox("logs", "ps", "--grep", "Started").stdout
    assert " up " in sandbox("events").stdout
    assert {task["pid"] for task in before} <= set(sandbox.processes())
    with running("sleep", "600", env={"TFCLUSTER_AGENT_MARK": "0" * 32, "TEST_MARK": sandbox.mark}) as stranger:
        down = sandbox("down", *(["--all"] if damage == "cut" else []))
        assert stranger.poll() is None
    assert down.stderr.count(f"warning: {journal_of(sandbox)} is damaged") == 1
    assert re.search(r"stopped [34] processes of hurt: .*ps:0 \(pid \d+\)", down.stderr)
    assert sandbox.leftovers() == []
    sandbox("up", spec)
    assert sandbox.status()["state"] == "running"


@pytest.mark.slow
def test_down_goes_on_when_its_command_dies_and_kills_what_takes_no_other_signal(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGSTOP)
    sandbox.kill_agent()
    journal_of(sandbox).write_text("{")
    agents = set(sandbox.pids("agent on"))
    down = sandbox.start("down", "--grace", "1")
    wait_for(lambda: set(sandbox.pids("agent on")) - agents or down.poll() == 0)
    down.kill()
    down.communicate()
    sandbox("down", "--grace", "1", code=None)
    wait_for(lambda: not sandbox.leftovers())


_HOSTS = "hosts:\n  alpha: {address: 127.0.0.2}\n  beta: {address: 127.0.0.3}\n"


@pytest.mark.slow
def test_down_stops_what_a_host_runs_whose_journal_is_damaged(tmp_path: Path) -> None:
    with make_sandbox(tmp_path, PLAYED) as sandbox:
        sandbox("up", sandbox.spec(f"name: hurt\n{_HOSTS}jobs:\n  worker: {{tasks: 4}}\n"))
        [lock] = sandbox.folder.glob("**/hurt/beta/lock")
        agent = ProcessHandle.from_pid(json.loads(lock.read_text())["pid"])
        assert agent is not None
        os.kill(agent.pid, signal.SIGKILL)
        wait_for(lambda: not agent.is_alive())
        (lock.parent / "journal.json").write_text("{")
        error = sandbox("status", code=5).stderr
        assert "is damaged" in error
        assert re.search("`tfcluster down( -c hurt)?`", error)
        down = sandbox("down")
        assert down.stderr.count("is damaged") == 1
        assert sandbox.leftovers() == []
        sandbox("status", code=3)
