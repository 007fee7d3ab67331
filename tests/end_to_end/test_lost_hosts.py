"""A host of a cluster that cannot be reached, or that has come back without its state, as a pod that was replaced."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal

import pytest

from tests.clusters import Cluster, Hosts
from tests.conftest import Sandbox, environment_of, wait_for
from tests.end_to_end.test_hosts import _HOSTS, away, book
from tests.hosts import HostsSandbox

#: A chief on alpha, which leads, and the other tasks on beta.
SPEC = (
    f"name: two\n{_HOSTS}jobs:\n  chief: {{tasks: 1, hosts: [alpha]}}\n"
    "  ps: {tasks: 1, hosts: [beta]}\n  worker: {tasks: 1, max: 3, hosts: [beta]}\n"
)


LOST = "host 'alpha' cannot be reached: connection timed out"


CLUSTER = Cluster(SPEC, warm=True, is_played=True)


@pytest.mark.slow
def test_no_run_is_started_and_those_that_there_are_are_found_when_it_is_back(cluster: Sandbox) -> None:
    before = cluster.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    with away(cluster, "alpha"):
        assert LOST in cluster("run", "pi", "--samples", "1e5", "--devices", "/job:worker", code=5).stderr
        listed = cluster("runs", "-o", "json", code=5)
        assert json.loads(listed.stdout) == []
        assert f"error: {LOST}\n" in listed.stderr
        assert f"{LOST}, and no other host has a run {before!r}" in cluster("attach", before, code=5).stderr
    assert [each["run"] for each in cluster.json("runs")] == [before]
    assert cluster("cancel", before).stdout == f"{before} succeeded\n"


@pytest.mark.slow
def test_jobs_on_the_other_hosts_are_scaled(cluster: Sandbox) -> None:
    with away(cluster, "alpha"):
        shown = cluster("scale", "worker=2")
        assert "two is up: 1 task started" in shown.stdout
        assert f"{LOST}: its tasks are unchanged" in shown.stderr
        assert book(cluster) == ["alpha", "beta"]
        refused = cluster("scale", "chief=2", code=5)
        assert f"{LOST}, and the change concerns chief:1 there: nothing was changed" in refused.stderr
        refused = cluster("scale", "worker=5", "--yes", code=5)
        assert "its servers would have to learn new addresses: nothing was changed" in refused.stderr
    assert "host alpha has missed a change" in cluster("scale", "worker=2").stdout
    assert "nothing changed" in cluster("scale", "worker=2").stdout
    assert [task["state"] for task in cluster.status()["tasks"]] == ["ready"] * 4


@pytest.mark.slow
def test_a_run_of_an_earlier_head_task_is_found(cluster: Sandbox) -> None:
    before = cluster.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    spec = cluster.folder / "cluster.yaml"
    more = SPEC.replace("{tasks: 1, max: 3, hosts: [beta]}", "{tasks: 2, hosts: [beta, alpha]}")
    for text in (more, more.replace("[alpha]}", "[beta]}", 1)):
        spec.write_text(text)
        cluster("up", spec, "--yes")
    run = cluster.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    assert [each["run"] for each in cluster.json("runs")][-2:] == [before, run]
    for each in (before, run):
        cluster("attach", each)
        assert cluster("cancel", each).stdout == f"{each} succeeded\n"


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


def test_the_leading_host_comes_back_empty_and_all_commands_say_so(hosts: HostsSandbox) -> None:
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
    assert "alpha is down" in hosts("status", code=4).stdout
    for command in (["run", "pi"], ["run", "hello.py"], ["launch", "hello.py"]):
        said = hosts(*command, code=4).stderr
        assert "'wide' is degraded: host 'alpha', which leads its runs, has come back without its state" in said, said
        assert "hint: `tfcluster up` starts its tasks again" in said
    hosts("up")
    assert hosts.status()["state"] == "running"
    assert hosts("run", "hello.py").stdout == "hello\n"
