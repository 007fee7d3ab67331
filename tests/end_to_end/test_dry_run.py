"""What `up --dry-run` and `doctor` leave on hosts with a real sshd: the code; and what of a spec they run there."""

from __future__ import annotations

import shutil

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


@pytest.mark.parametrize("command", mostly_slow(COMMANDS, fast=COMMANDS[:1]), ids=" ".join)
def test_a_fresh_host_gets_the_code_and_nothing_else(fresh: HostsSandbox, command: tuple[str, ...]) -> None:
    spec = fresh.spec(fresh.text(("alpha",), "jobs: {ps: {tasks: 1}, worker: {tasks: 3, hosts: [alpha, localhost]}}"))
    before = listing(fresh)
    assert fresh.json(*command, spec)
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
