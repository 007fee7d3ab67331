"""Up and down again and again: nothing of it is left, and nothing grows. `pytest --cycles 100` does it often."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import Sandbox
from tfcluster.os.unix_socket import NameLock
from tfcluster.process_mark import lock_name

SPEC = "name: cycle\njobs:\n  worker: {tasks: 1}\n"


def files(sandbox: Sandbox) -> set[str]:
    """Every file and folder of the sandbox's clusters, but what the fork server printed if it came so far."""
    found = {path for part in ("state", "run") for path in (sandbox.folder / part).rglob("*")}
    return {str(path) for path in found if path.name != "fork-server.log"}


@pytest.mark.slow
def test_cycles_leave_nothing(sandbox: Sandbox, pytestconfig: pytest.Config) -> None:
    spec = sandbox.spec(SPEC)
    name = lock_name("agent", sandbox.folder / "state/tfcluster/cycle/localhost")
    first: set[str] = set()
    for _ in range(pytestconfig.getoption("cycles")):
        sandbox("up", spec)
        assert NameLock.holder(name) == sandbox.recorded_agent()
        sandbox("down")
        assert sandbox.leftovers() == [], "down returns when the agent's process has ended"
        sandbox("logs", "-c", "cycle")
        assert sandbox.leftovers() == [], "so does a command for which one was started"
        assert NameLock.holder(name) == 0
        first = first or files(sandbox)
        assert files(sandbox) == first


@pytest.mark.slow
def test_commands_that_need_no_agent_in_the_end_leave_none(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: cycle\njobs:\n  worker: {tasks: 1, gpus: 64}\n")
    for options in ([], ["--dry-run"]):
        sandbox("up", spec, *options, code=1)
        assert sandbox.leftovers() == []
    ups = [sandbox.start("up", sandbox.spec(SPEC)) for _ in range(4)]
    for up in ups:
        up.communicate(timeout=60)
    unnamed = [title for title in sandbox.processes().values() if not title.startswith("tfcluster: ")]
    assert unnamed == [], "an agent that came second has ended"


@pytest.mark.slow
def test_down_returns_when_the_agent_has_ended_however_long_that_takes(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    following = sandbox.start("events", "-f")
    following.stdout.readline()
    agent = sandbox.status()["hosts"][0]["agent_pid"]
    following.send_signal(signal.SIGSTOP)  # so that the agent waits for it before it ends
    sandbox("down")
    left = sandbox.processes()
    following.send_signal(signal.SIGCONT)
    assert agent not in left
    assert list(left) == [following.pid]
    following.communicate(timeout=60)
    assert sandbox.leftovers() == []
