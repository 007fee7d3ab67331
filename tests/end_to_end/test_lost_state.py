"""Hosts that come back without their state, as a pod does that was replaced: what `run` says of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal

from tests.clusters import Hosts
from tests.conftest import environment_of, wait_for
from tests.hosts import HostsSandbox

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 2, hosts: [alpha, beta]}\n"


#: alpha leads the runs.
HOSTS = Hosts(NAMES, JOBS, has_sshd=False)


def processes_on(hosts: HostsSandbox, host: str) -> list[int]:
    """What runs on a host, and sessions of commands that have entered it."""
    home = f"XDG_STATE_HOME={hosts.network.home(host) / 'state'}\0".encode()
    return [pid for pid in hosts.network.processes() if home in environment_of(pid)]


def replace_host(hosts: HostsSandbox, host: str) -> None:
    """Have another host take the place of one, at the same name and address: nothing runs there, nothing is stored."""
    hosts.network.hide(host)
    for pid in processes_on(hosts, host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_on(hosts, host))
    for folder in ("state", "run", "cache"):
        shutil.rmtree(hosts.network.home(host) / folder)
        (hosts.network.home(host) / folder).mkdir(mode=0o700)
    hosts.network.show(host)


def test_run_says_as_status_does_that_the_leading_host_has_come_back_empty(hosts: HostsSandbox) -> None:
    replace_host(hosts, "alpha")
    assert "alpha is down" in hosts("status", code=4).stdout
    (hosts.folder / "hello.py").write_text("print('hello')")
    for command in (["run", "pi"], ["run", "hello.py"], ["launch", "hello.py"]):
        said = hosts(*command, code=4).stderr
        assert "'wide' is degraded: host 'alpha', which leads its runs, has come back without its state" in said, said
        assert "hint: `tfcluster up` starts its tasks again" in said
    hosts("up")
    assert hosts.status()["state"] == "running"
    assert hosts("run", "hello.py").stdout == "hello\n"


def test_a_run_that_has_not_begun_is_lost_with_the_state_of_its_host(hosts: HostsSandbox) -> None:
    (hosts.folder / "hello.py").write_text("print('hello')")
    hosts("run", "hello.py")
    (fork_server,) = hosts.network.pids(" fork server")
    os.kill(fork_server, signal.SIGSTOP)  # the agent accepts the next run, whose driver does not start
    run = hosts.start("run", "pi", "-o", "json")
    assert '"event": "run"' in run.stdout.readline()
    replace_host(hosts, "alpha")
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "error: host 'alpha' has come back without its state: the run is lost" in errors
    assert "hint: `tfcluster up` starts its tasks again; then type the command again." in errors
    hosts("up")
