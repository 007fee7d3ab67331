"""Descriptors: runs cost the agent none, and what is said and left if there are too few."""

from __future__ import annotations

import os
import resource
import signal
from functools import partial

import pytest

from tests.conftest import COMMAND, Result, Sandbox, wait_for

SPEC = "name: tough\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def restart(sandbox: Sandbox) -> None:
    """Kill a server, and wait for the one that replaces it."""
    dead = sandbox.task("worker:1")["pid"]
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: sandbox.task("worker:1", code=None)["pid"] not in (None, dead))
    sandbox.wait_until("running")


@pytest.mark.slow
def test_runs_and_dead_servers_cost_the_agent_no_descriptors(sandbox: Sandbox) -> None:
    """A run is cancelled where its command dies."""
    sandbox("up", sandbox.spec(SPEC, warm=True))
    agent = sandbox.agent()

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{agent}/fd"))

    sandbox("run", "pi", "--samples", "1000")
    before = descriptors()
    for _ in range(2):
        sandbox("run", "pi", "--samples", "1000")
        sandbox("run", "pi", "--samples", "1e12", "--timeout", "0.5", code=124)
        run = sandbox.start("run", "pi", "--samples", "1e14", "-o", "json")
        run.stdout.readline()
        run.kill()
        run.communicate()
        wait_for(lambda: sandbox.status()["runs"][-1]["state"] == "cancelled")
        restart(sandbox)
    wait_for(lambda: descriptors() <= before)  # the end of a command is seen, or a health check over, a moment later


def with_descriptors(sandbox: Sandbox, limit: int, *words: str) -> Result:
    """Run a command that may have at most this many open files; it does not crash."""
    limited = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, limit))
    result = sandbox.execute(*COMMAND, *words, preexec_fn=limited)
    assert result.returncode == 0 or "Too many open files" in result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "code"), [(110, 4), (64, 1)], ids=["for all servers", "for the ports"])
def test_too_few_file_descriptors_are_reported_and_nothing_is_left(sandbox: Sandbox, limit: int, code: int) -> None:
    sandbox.spec("name: many\njobs:\n  worker: {tasks: 30}\nrestart: {policy: never}\n")
    result = with_descriptors(sandbox, limit, "up", "--timeout", "20")
    assert result.returncode == code
    assert ("`ulimit -Hn`" in result.stderr) is (code == 1), "it is named where a port is to be reserved"
    sandbox("down", code=0 if code == 4 else 3)
    wait_for(lambda: not sandbox.leftovers())


@pytest.mark.slow
def test_servers_are_not_taken_for_dead_when_descriptors_run_out(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    before = sandbox.tasks("pid")
    for limit in (16, 17, 18):  # the agent runs out at another step of its adoption with each
        if any(title.endswith(" agent on localhost") for title in sandbox.processes().values()):
            sandbox.kill_agent()
        with_descriptors(sandbox, limit, "status")
    sandbox.wait_until("running")
    assert sandbox.tasks("pid") == before
    assert {*sandbox.tasks("restarts").values()} == {0}
