"""Commands that meet: each ends, `status` tells the truth afterwards, and `down` clears it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Sandbox, wait_for

SPEC = "name: meet\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def assert_interrupted(command: subprocess.Popen[str]) -> None:
    """Whether a command that was interrupted has ended as it should."""
    _, error = command.communicate(timeout=60)
    if "Traceback" in error and ", in main\n" not in error:
        return  # Python had not come to our first line yet, and says so in its own way
    # A shell shows death by SIGINT as 130 too; it ends so before the command's own handler is there, and after.
    assert command.returncode in (0, 130, -signal.SIGINT), error
    assert "Traceback" not in error


def test_two_ups_at_once_make_one_cluster(sandbox: Sandbox) -> None:
    sandbox.spec(SPEC)
    ups = [sandbox.start("up") for _ in range(3)]
    outputs = [up.communicate(timeout=60) for up in ups]
    assert [up.returncode for up in ups] == [0, 0, 0], outputs
    assert sandbox.status()["state"] == "running"
    titles = sorted(title for title in sandbox.processes().values() if ":" in title.removeprefix("tfcluster:"))
    assert titles == ["tfcluster: meet ps:0", "tfcluster: meet worker:0", "tfcluster: meet worker:1"]


@pytest.mark.slow
def test_two_downs_at_once(sandbox: Sandbox) -> None:
    sandbox.spec(SPEC)
    sandbox("up")
    downs = [sandbox.start("down") for _ in range(3)]
    codes = []
    for down in downs:
        _, error = down.communicate(timeout=60)
        assert "Traceback" not in error
        codes.append(down.returncode)
    assert 0 in codes
    assert set(codes) <= {0, 3}, "a command that comes too late finds it not running"
    wait_for(lambda: not sandbox.leftovers())  # one may have started an agent to ask


@pytest.mark.slow
def test_up_that_meets_down(sandbox: Sandbox) -> None:
    sandbox.spec(SPEC)
    sandbox("up")
    down = sandbox.start("down")
    up = sandbox.start("up")
    for command in (down, up):
        _, error = command.communicate(timeout=60)
        assert "Traceback" not in error
    assert down.returncode == 0
    assert up.returncode in (0, 1, 4), "it was first, refused by an agent that goes down, or lost its tasks to it"
    left = len([title for title in sandbox.processes().values() if " worker:" in title])
    sandbox("status", code=0 if left else 3)
    sandbox("down", code=0 if left else 3)
    assert sandbox.leftovers() == []


#: What has come of an `up` when it is interrupted.
MOMENTS: dict[str, Callable[[Sandbox], Any]] = {
    "an agent": lambda sandbox: any("agent on" in title for title in sandbox.processes().values()),
    "a socket": lambda sandbox: list(sandbox.folder.glob("run/tfcluster/*")),
    "a journal": lambda sandbox: list(sandbox.folder.glob("state/**/journal.json")),
    "a server": lambda sandbox: any(" worker:" in title for title in sandbox.processes().values()),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_at_any_moment_of_up(sandbox: Sandbox, moment: str) -> None:
    sandbox.spec(SPEC)
    up = sandbox.start("up")
    wait_for(lambda: MOMENTS[moment](sandbox) or up.poll() is not None)
    up.send_signal(signal.SIGINT)
    assert_interrupted(up)
    sandbox("up")
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize("state", ["stopping", "stopped"])
def test_an_interrupt_at_any_moment_of_down(sandbox: Sandbox, state: str) -> None:
    sandbox.spec(SPEC)
    sandbox("up")
    [journal] = sandbox.folder.glob("state/**/journal.json")

    def come() -> bool:
        return down.poll() is not None or not journal.exists() or f'"state": "{state}"' in journal.read_text()

    down = sandbox.start("down")
    with contextlib.suppress(FileNotFoundError):  # it went between two looks
        wait_for(come)
    down.send_signal(signal.SIGINT)
    assert_interrupted(down)
    # The agent goes down by itself, or has not been asked to: in both cases the next command is told the truth.
    down = sandbox.start("down")
    _, error = down.communicate(timeout=60)
    assert down.returncode in (0, 1, 3), error
    assert "Traceback" not in error
    wait_for(lambda: not sandbox.leftovers())


@pytest.mark.slow
def test_a_run_that_meets_down(sandbox: Sandbox) -> None:
    sandbox.spec(SPEC)
    sandbox("up")
    down = sandbox.start("down")
    run = sandbox.start("run", "pi", "--samples", "1e14")
    errors = [command.communicate(timeout=60)[1] for command in (down, run)]
    assert down.returncode == 0, errors
    assert run.returncode in (1, 3), errors
    assert "Traceback" not in "".join(errors)
    sandbox("down", code=3)
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_an_agent_that_dies_while_going_down_is_followed_by_one_that_goes_on(sandbox: Sandbox) -> None:
    sandbox.spec(SPEC)
    sandbox("up")
    status = sandbox.status()
    pids = {task["pid"] for task in status["tasks"]}
    for task in status["tasks"]:
        os.kill(task["pid"], signal.SIGSTOP)  # so that TERM alone does not end it
    down = sandbox.start("down", "--grace", "600")
    wait_for(lambda: '"state": "stopping"' in next(sandbox.folder.glob("state/**/journal.json")).read_text())
    sandbox.kill_agent()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    _, error = down.communicate(timeout=90)
    assert down.returncode == 0, error
    assert not pids & set(sandbox.processes())
    assert sandbox.leftovers() == []
