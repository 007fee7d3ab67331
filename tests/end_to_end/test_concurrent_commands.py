"""Commands that meet or end early: each ends, `status` tells the truth afterwards, and `down` clears it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, Sandbox, wait_for
from tests.hosts import over

SPEC = "name: meet\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def end_of(command: Command) -> int:
    """Wait until a command has ended, and return its exit code."""
    _, error = command.communicate(timeout=90)
    assert "Traceback" not in error
    return command.returncode


def assert_interrupted(command: Command) -> None:
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
@pytest.mark.needs("network")
def test_ups_at_once_on_several_hosts_make_one_cluster(tmp_path: Path) -> None:
    with over(tmp_path, "alpha", "beta", has_sshd=False) as sandbox:
        sandbox.spec(sandbox.text(("alpha", "beta"), "jobs: {ps: {tasks: 1}, worker: {tasks: 2}}\n"))
        ups = [sandbox.start("up") for _ in range(2)]
        outputs = [up.communicate(timeout=120) for up in ups]
        assert [up.returncode for up in ups] == [0, 0], outputs
        assert sandbox.status()["state"] == "running"


@pytest.mark.slow
def test_two_downs_at_once(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    codes = {end_of(down) for down in [sandbox.start("down") for _ in range(3)]}
    assert 0 in codes
    assert codes <= {0, 3}, "a command that comes too late finds it not running"
    wait_for(lambda: not sandbox.leftovers())  # one may have started an agent to ask


@pytest.mark.slow
def test_up_that_meets_down(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    down, up = sandbox.start("down"), sandbox.start("up")
    assert end_of(down) == 0
    assert end_of(up) in (0, 1, 4), "it was first, refused by an agent that goes down, or lost its tasks to it"
    code = 0 if sandbox.pids(" worker:") else 3
    sandbox("status", code=code)
    sandbox("down", code=code)
    assert sandbox.leftovers() == []


#: What has come of an `up` when it is interrupted.
MOMENTS: dict[str, Callable[[Sandbox], Any]] = {
    "an agent": lambda sandbox: sandbox.pids("agent on"),
    "a socket": lambda sandbox: list(sandbox.folder.glob("state/**/socket")),
    "a journal": lambda sandbox: list(sandbox.folder.glob("state/**/journal.json")),
    "a server": lambda sandbox: sandbox.pids(" worker:"),
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
    sandbox("up", sandbox.spec(SPEC))
    [journal] = sandbox.folder.glob("state/**/journal.json")
    down = sandbox.start("down")

    def come() -> bool:
        return down.poll() is not None or not journal.exists() or f'"state": "{state}"' in journal.read_text()

    with contextlib.suppress(FileNotFoundError):  # it went between two looks
        wait_for(come)
    down.send_signal(signal.SIGINT)
    assert_interrupted(down)
    # The agent goes down by itself, or has not been asked to: in both cases the next command is told the truth.
    assert end_of(sandbox.start("down")) in (0, 1, 3)
    wait_for(lambda: not sandbox.leftovers())


@pytest.mark.slow
def test_a_run_that_meets_down(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    down, run = sandbox.start("down"), sandbox.start("run", "pi", "--samples", "1e14")
    assert end_of(down) == 0
    assert end_of(run) in (1, 3)
    sandbox("down", code=3)
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_an_agent_that_dies_while_going_down_is_followed_by_one_that_goes_on(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    pids = set(sandbox.tasks("pid").values())
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that TERM alone does not end it
    down = sandbox.start("down", "--grace", "600")
    wait_for(lambda: '"state": "stopping"' in next(sandbox.folder.glob("state/**/journal.json")).read_text())
    sandbox.kill_agent()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert end_of(down) == 0
    assert not pids & set(sandbox.processes())
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_two_ups_of_different_specs_at_once(sandbox: Sandbox) -> None:
    one = sandbox.spec("name: same\njobs:\n  worker: {tasks: 1}\n", "one.yaml")
    two = sandbox.spec("name: same\njobs:\n  trainer: {tasks: 1}\n", "two.yaml")
    ups = [sandbox.start("up", spec, "--yes", "--replace-spec") for spec in (one, two)]
    errors = [up.communicate(timeout=60)[1] for up in ups]
    # The agent rejects the later plan, and its `up` plans again; the earlier `up` may still wait for the replaced task.
    assert sorted(up.returncode for up in ups) in ([0, 0], [0, 4]), errors
    (task,) = sandbox.status()["tasks"]
    assert task["job"] in ("worker", "trainer")


@pytest.mark.slow
def test_following_ends_well_with_the_cluster_and_does_not_disturb_a_later_down(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    followers = [sandbox.start("logs", "-f"), sandbox.start("events", "-f")]
    for follower in followers:
        follower.stdout.readline()
    sandbox("down")
    outputs = [follower.communicate(timeout=60)[0] for follower in followers]
    assert [follower.returncode for follower in followers] == [0, 0]
    assert outputs[1].splitlines()[-1].split()[2:] == ["cluster", "down"]
    reading = sandbox.start("logs", "-f", "-c", "meet", "-n", "1")
    reading.stdout.readline()
    assert "is not running" in sandbox("down", "-c", "meet", code=3).stderr
    reading.send_signal(signal.SIGINT)
    reading.communicate(timeout=60)


@pytest.mark.slow
def test_down_goes_on_when_its_command_dies(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    for task in sandbox.status()["tasks"]:
        os.kill(task["pid"], signal.SIGSTOP)  # so that it takes the grace period
    for grace in ("600", "1"):  # the ps, which comes last, has no more time than the second one gives either
        down = sandbox.start("down", "--grace", grace)
        down.stderr.readline()
        down.kill()
        down.communicate()
    wait_for(lambda: not sandbox.leftovers())
    sandbox("up")
