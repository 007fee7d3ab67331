"""The agent's own log: `logs --agent` shows it, also that of an earlier agent, and it is rotated."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Sandbox, wait_for

SPEC = "name: logged\njobs:\n  worker: {tasks: 2}\n"


def agent_log(sandbox: Sandbox, *arguments: str) -> list[str]:
    command = sandbox.start("logs", "--agent", *arguments)  # its output may contain a traceback
    return command.communicate(timeout=90)[0].splitlines()


@pytest.mark.slow
def test_it_has_the_transitions_with_their_causes_and_outlives_the_agent(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.task("worker:0", code=None)["restarts"] == 1)
    sandbox.wait_until("running")
    agent = sandbox.status()["hosts"][0]["agent_pid"]
    os.kill(agent, signal.SIGTERM)
    wait_for(lambda: not Path(f"/proc/{agent}").exists())
    lines = agent_log(sandbox)
    expected = [
        f"INFO    up: 2 tasks, agent {agent}",
        "INFO    worker:0 started: pid",
        "INFO    worker:0 died: SIGKILL; restarting immediately",
        f"INFO    agent-stopped: pid {agent}, by SIGTERM",
        "INFO    agent-started: pid",
        "INFO    worker:1 adopted: pid",
    ]
    positions = [next(at for at, line in enumerate(lines) if text in line) for text in expected]
    assert positions == sorted(positions)
    assert {line.partition(" | ")[0] for line in lines} == {"agent"}
    assert agent_log(sandbox, "localhost", "--tail", "1") == agent_log(sandbox)[-1:]
    sandbox("down")
    assert agent_log(sandbox, "-c", "logged")[-1].endswith("INFO    down")


@pytest.mark.slow
def test_a_request_that_fails_leaves_its_traceback(sandbox: Sandbox) -> None:
    broken = "def _fail(*arguments): raise KeyError('broken')\nClusterHandlers.restart = _fail\n"
    changes = json.dumps({"tfcluster.agent.handlers.cluster": broken})
    sandbox("up", sandbox.spec(SPEC), env={"TEST_CHANGES": changes})
    sandbox("restart", "worker:0", "--yes", code=1)
    lines = agent_log(sandbox)
    assert any("ERROR   a request failed" in line for line in lines)
    assert any("Traceback (most recent call last)" in line for line in lines)
    assert any("KeyError: 'broken'" in line for line in lines)


@pytest.mark.slow
def test_following_it_goes_on_with_the_next_agent(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    follower = sandbox.start("logs", "--agent", "-f")
    sandbox.kill_agent()
    while "agent-started" not in (line := follower.stdout.readline()):
        assert line
    sandbox("down")
    assert "INFO    down" in follower.communicate(timeout=60)[0]


@pytest.mark.slow
def test_it_is_rotated(sandbox: Sandbox) -> None:
    env = sandbox.with_settings({"EVENT_LOG_FILE_BYTES": 500})
    sandbox("up", sandbox.spec(SPEC), env=env)
    for _ in range(3):
        sandbox("restart", "worker", "--yes", env=env)
    sandbox.wait_until("running")
    [newest] = sandbox.folder.glob("state/**/logs/agent.log")
    assert newest.with_name("agent.log.1").exists()
