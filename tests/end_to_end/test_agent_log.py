"""The agent's own log: `logs --agent` shows it, also that of an earlier agent, and it is rotated."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Sandbox, wait_for

SPEC = "name: logged\njobs:\n  worker: {tasks: 2}\n"


def agent_log(sandbox: Sandbox, *arguments: str) -> list[str]:
    command = sandbox.start("logs", "--agent", *arguments)  # its output may contain a traceback
    return command.communicate(timeout=90)[0].splitlines()


#: A handler that fails.
BROKEN = "def _fail(*arguments): raise KeyError('broken')\nClusterHandlers.restart = _fail\n"


@pytest.mark.slow
def test_it_has_the_transitions_and_tracebacks_and_continues_with_the_next_agent(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_fault("tfcluster.agent.handlers.cluster", BROKEN))
    follower = sandbox.start("logs", "--agent", "-f")
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.task("worker:0", code=None)["restarts"] == 1)
    sandbox.wait_until("running")
    sandbox("restart", "worker:0", "--yes", code=1)
    agent = sandbox.status()["hosts"][0]["agent_pid"]
    os.kill(agent, signal.SIGTERM)
    wait_for(lambda: not Path(f"/proc/{agent}").exists())
    lines = agent_log(sandbox)
    expected = [
        f"INFO    up: 2 tasks, agent {agent}",
        "INFO    worker:0 started: pid",
        "INFO    worker:0 died: SIGKILL; restarting immediately",
        "ERROR   a request failed",
        "Traceback (most recent call last)",
        "KeyError: 'broken'",
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
    followed = follower.communicate(timeout=60)[0].splitlines()
    assert followed[-1].endswith("INFO    down")
    assert [line for line in followed if "agent-started" in line] == [line for line in lines if "agent-started" in line]


@pytest.mark.slow
def test_it_is_rotated(sandbox: Sandbox) -> None:
    env = sandbox.with_settings({"EVENT_LOG_FILE_BYTES": 500})
    sandbox("up", sandbox.spec(SPEC), env=env)
    for _ in range(3):
        sandbox("restart", "worker", "--yes", env=env)
    sandbox.wait_until("running")
    [newest] = sandbox.folder.glob("state/**/logs/agent.log")
    assert newest.with_name("agent.log.1").exists()
