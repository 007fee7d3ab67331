"""Hosts that come back without their state, as a pod does that was replaced: what `run` says of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import environment_of, wait_for
from tests.end_to_end.test_ssh import Over, over

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 2, hosts: [alpha, beta]}\n"


@pytest.fixture
def pair(needs_network: None, tmp_path: Path) -> Iterator[Over]:
    """A cluster on two hosts without sshd; alpha leads its runs."""
    with over(tmp_path, *NAMES, has_sshd=False) as sandbox:
        sandbox("up", sandbox.spec(sandbox.text(NAMES, JOBS)))
        yield sandbox


def processes_on(pair: Over, host: str) -> list[int]:
    """What runs on a host, and sessions of commands that have entered it."""
    home = f"XDG_STATE_HOME={pair.network.home(host) / 'state'}\0".encode()
    return [pid for pid in pair.network.processes() if home in environment_of(pid)]


def replace_host(pair: Over, host: str) -> None:
    """Have another host take the place of one, at the same name and address: nothing runs there, nothing is stored."""
    pair.network.hide(host)
    for pid in processes_on(pair, host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_on(pair, host))
    for folder in ("state", "run", "cache"):
        shutil.rmtree(pair.network.home(host) / folder)
        (pair.network.home(host) / folder).mkdir(mode=0o700)
    pair.network.show(host)


def test_run_says_as_status_does_that_the_leading_host_has_come_back_empty(pair: Over) -> None:
    replace_host(pair, "alpha")
    assert "alpha is down" in pair("status", code=4).stdout
    (pair.folder / "hello.py").write_text("print('hello')")
    for command in (["run", "pi"], ["run", "hello.py"], ["launch", "hello.py"]):
        said = pair(*command, code=4).stderr
        assert "'wide' is degraded: host 'alpha', which leads its runs, has come back without its state" in said, said
        assert "hint: `tfcluster up` starts its tasks again" in said
    pair("up")
    assert pair.status()["state"] == "running"
    assert pair("run", "hello.py").stdout == "hello\n"


def test_a_run_that_has_not_begun_is_lost_with_the_state_of_its_host(pair: Over) -> None:
    (pair.folder / "hello.py").write_text("print('hello')")
    pair("run", "hello.py")
    (fork_server,) = pair.network.pids(" fork server")
    os.kill(fork_server, signal.SIGSTOP)  # the agent accepts the next run, whose driver does not start
    run = pair.start("run", "pi", "-o", "json")
    assert '"event": "run"' in run.stdout.readline()
    replace_host(pair, "alpha")
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "error: host 'alpha' has come back without its state: the run is lost" in errors
    assert "hint: `tfcluster up` starts its tasks again; then type the command again." in errors
    pair("up")
