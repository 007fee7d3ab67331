"""What `up --dry-run` and `doctor` leave on hosts with a real sshd: the code; and what of a spec they run there."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.clusters import Hosts
from tests.conftest import mostly_slow, wait_for
from tests.hosts import HERE, HostsSandbox

HOSTS = Hosts(strangers=("alpha", "beta"))
COMMANDS = (("up", "--dry-run"), ("doctor",))


def listing(sandbox: HostsSandbox) -> dict[str, tuple[int, int, bytes]]:
    """Each file and folder that the users of all hosts keep, with its content, and those of the machine `here`.

    Left out are the code, the folders of all clusters, which may be empty, the sockets of links, and what a running
    cluster may write at any time: the agent's own log, and what its fork server writes when it imports TensorFlow, with
    Keras and Matplotlib.
    """
    written_at_any_time = {"agent.log", "fork-server.log", ".keras", "keras.json", ".config", "matplotlib"}
    entries = {}
    for user in (HERE, *sandbox.network.names):
        home = sandbox.network.home(user)
        for path in home.rglob("*"):
            parts = path.relative_to(home).parts
            is_code, is_link = parts[:3] == ("cache", "tfcluster", "code"), parts[:2] == ("run", "tfcluster")
            is_shared = is_code or is_link or parts[1:] == ("tfcluster",)
            if written_at_any_time.isdisjoint(parts) and not is_shared:
                status = path.lstat()
                text = path.read_bytes() if path.is_file() else b""
                entries[str(path)] = (status.st_mode, status.st_mtime_ns if path.is_file() else 0, text)
    return entries


@pytest.fixture
def fresh(hosts: HostsSandbox) -> HostsSandbox:
    """Two hosts that tfcluster has never been on."""
    wait_for(lambda: not hosts.network.leftovers())
    for name in (HERE, *hosts.network.names):
        for folder in ("state", "run", "cache"):
            shutil.rmtree(hosts.network.home(name) / folder)
            (hosts.network.home(name) / folder).mkdir(mode=0o700)
    return hosts


@pytest.mark.slow
def test_setup_is_not_run_and_what_it_changes_is_not_checked(fresh: HostsSandbox, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "plain").chmod(0o755)
    spec = fresh.spec(
        f"""
name: wide
hosts:
  alpha:
    address: {fresh.network.address("alpha")}
    python: {sys.executable}
    setup: [touch {tmp_path / "setup"}]
  beta:
    address: {fresh.network.address("beta")}
    python: {tmp_path / "made"}
    setup: [cp {tmp_path / "plain"} {tmp_path / "made"}]
jobs: {{worker: {{tasks: 2}}}}
"""
    )
    before = listing(fresh)
    for command in COMMANDS:
        result = fresh(*command, spec)
        assert not [name for name in ("setup", "made") if (tmp_path / name).exists()]
        assert "`setup:` has not been run there" in " ".join((result.stdout + result.stderr).split())
        wait_for(lambda: not fresh.network.leftovers())
        assert listing(fresh) == before
    plan = fresh.json("up", "--dry-run", spec)
    what = f"python: {tmp_path / 'made'} does not exist yet; `setup:` might create it: not checked"
    assert {"host": "beta", "what": what} in plan["not_examined"]
    assert [operation["operation"] for operation in plan["operations"]] == ["start"] * 2
    checks = fresh.json("doctor", spec)["checks"]
    unexamined = [(check["host"], check["check"]) for check in checks if not check["examined"]]
    assert unexamined == [("alpha", "host"), ("beta", "host"), ("beta", "host"), ("beta", "tasks")]
    assert all(check["ok"] for check in checks)

    fresh("up", spec)
    assert (tmp_path / "setup").exists()
    for command in COMMANDS:
        result = fresh(*command, spec)
        assert "not checked" not in result.stdout + result.stderr
    fresh("down")


@pytest.mark.parametrize("command", mostly_slow(COMMANDS, fast=COMMANDS[:1]), ids=" ".join)
def test_a_fresh_host_gets_the_code_and_nothing_else(fresh: HostsSandbox, command: tuple[str, ...]) -> None:
    spec = fresh.spec(
        fresh.text(("alpha", "beta"), "jobs: {ps: {tasks: 1}, worker: {tasks: 3, hosts: [alpha, localhost]}}")
    )
    before = listing(fresh)
    assert fresh.json(*command, spec)
    wait_for(lambda: not fresh.network.leftovers())
    assert listing(fresh) == before


@pytest.mark.slow
def test_what_a_host_lacks_is_reported_and_the_host_is_unchanged(fresh: HostsSandbox, tmp_path: Path) -> None:
    jobs = "jobs: {worker: {tasks: 2, gpus: 64}}"
    spec = fresh.spec(fresh.text(("alpha", "beta"), jobs, {"beta": tmp_path / "none"}))
    before = listing(fresh)
    for command in COMMANDS:
        result = fresh(*command, spec, code=1)
        told = " ".join((result.stdout + result.stderr).split())
        assert "the tasks require 64 GPUs" in told
        assert f"there is no {tmp_path / 'none'}" in told.replace("/ ", "/")
        wait_for(lambda: not fresh.network.leftovers())
        assert listing(fresh) == before


@pytest.mark.slow
def test_a_running_cluster_is_unchanged(fresh: HostsSandbox) -> None:
    spec = fresh.spec(fresh.text(("alpha", "beta"), "jobs: {worker: {tasks: 3, hosts: [alpha, beta, localhost]}}"))
    fresh("up", spec)
    pids = fresh.tasks("pid")
    before = listing(fresh)
    for command in COMMANDS:
        assert fresh.json(*command, spec)
        assert listing(fresh) == before
    assert fresh.tasks("pid") == pids
    fresh("down")


@pytest.mark.slow
def test_no_agent_is_started_where_one_has_died(fresh: HostsSandbox) -> None:
    spec = fresh.spec(fresh.text(("alpha",), "jobs: {worker: {tasks: 1}}"))
    fresh("up", spec)
    (lock,) = fresh.network.home("alpha").glob("state/tfcluster/*/*/lock")
    pid = json.loads(lock.read_text())["pid"]
    os.kill(pid, 9)
    wait_for(lambda: pid not in fresh.network.processes())
    before = listing(fresh)
    for command in (*((*each, spec) for each in COMMANDS), ("scale", "worker=2", "--dry-run")):
        told = fresh(*command, code=1 if command[0] == "doctor" else 4)
        assert "agent has died" in " ".join((told.stdout + told.stderr).split())
        assert listing(fresh) == before
    fresh.wait_until("running")
    fresh("down")


# Each would run a program on this machine, or name a file that is none of the host's, were it taken as it stands.
_SMUGGLED = """
name: wide
hosts:
  alpha: {address: 10.77.9.1, ssh: "-oProxyCommand=touch${IFS}MARKER"}
  beta: {address: 10.77.9.2, ssh: "tf@-oProxyCommand=touch${IFS}MARKER"}
  gamma: {address: "-oProxyCommand=touch${IFS}MARKER"}
  delta: {address: 10.77.9.4, ssh: "$(touch${IFS}MARKER)"}
  epsilon: {address: 10.77.9.5, python: "-cimport os", state: "-x"}
  -oProxyCommand=x:
jobs: {worker: {tasks: 2}}
"""
