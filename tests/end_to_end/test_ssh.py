"""A cluster over real sshds: one ps and four workers on three hosts and on the machine where the command runs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import listening
from tests.conftest import (
    HANG,
    HANGING_AGENT,
    LAZY_FORK_SERVER,
    RESUME,
    Sandbox,
    lines_of,
    make_sandbox,
    read_until,
    stopped_repeatedly,
    wait_for,
)
from tests.hosts import HERE, SshHosts, ssh_hosts
from tests.namespaces import Machine

NAMES = ("alpha", "beta", "gamma")
JOBS = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 4, hosts: [alpha, beta, gamma, localhost]}\n"
#: The `connect:` of hosts that are entered as containers are.
CONNECT = "enter {terminal:-t} {host}"
PROGRAMS = (
    ("graph", {"value"}),
    ("pi --samples 1e6 --seed 7", {"inside", "pi"}),
    ("mean {numbers}", {"mean", "variance", "count"}),
    ("linear --sync --steps 40 --seed 3", {"w", "b", "steps"}),
    ("expfit --mode single --steps 10 --seed 3", {"loss"}),
    ("expfit --mode data-parallel --steps 10 --seed 3", {"loss"}),
    ("expfit --mode model-parallel --steps 10 --seed 3", {"loss"}),
)


@dataclass
class Over(Sandbox):
    """A sandbox whose commands run on the machine `here` of a network of hosts."""

    hosts: SshHosts | None = None
    has_sshd: bool = True

    @property
    def network(self) -> SshHosts:
        assert self.hosts is not None
        return self.hosts

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.network.environment}

    def text(self, names: tuple[str, ...], jobs: str, pythons: dict[str, Path] | None = None) -> str:
        """A spec with these hosts, and this machine where a job names it."""
        paths = dict.fromkeys(names, Path(sys.executable)) | (pythons or {})
        way = "" if self.has_sshd else f", connect: '{CONNECT}'"
        lines = [f"  {name}: {{address: {self.network.address(name)}, python: {paths[name]}{way}}}\n" for name in names]
        here = f"  localhost: {{address: {self.network.address(HERE)}}}\n" if "localhost" in jobs else ""
        return f"name: wide\nhosts:\n{''.join(lines)}{here}{jobs}"

    @contextlib.contextmanager
    def without(self, part: str, host: str) -> Iterator[None]:
        """A host has lost its `link`, or the `way` that commands take to it, which ends what they have there."""
        lose, restore = {
            "link": (self.network.network.unplug, self.network.network.plug_in),
            "way": (self.network.kill, self.network.start) if self.has_sshd else (self.network.hide, self.network.show),
        }[part]
        lose(host)
        try:
            yield
        finally:
            restore(host)


@contextlib.contextmanager
def over(folder: Path, *names: str, has_sshd: bool = True) -> Iterator[Over]:
    """Hosts, and a sandbox to run commands in; nothing may be left in the end."""
    with ssh_hosts(*names, has_sshd=has_sshd) as hosts:
        command = tuple(hosts.command(sys.executable, "-m", "tfcluster"))
        sandbox = Over(folder, mark=hosts.mark, command=command, hosts=hosts, has_sshd=has_sshd)
        try:
            yield sandbox
        finally:
            sandbox.end_commands()
            if hosts.leftovers():
                sandbox("down", "--all", "--grace", "1", code=None)


@pytest.fixture(scope="module")
def wide(needs_sshd: None, way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """The cluster, and a host that is not of it, shared by the tests of the module; they leave it ready."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_SETTINGS", json.dumps({"FAILED_PROBES_MAX": 6}))  # a frozen server stays for a while
        patch.setenv("TEST_CHANGES", json.dumps({**LAZY_FORK_SERVER, **dict([HANGING_AGENT])}))
        with over(tmp_path_factory.mktemp("wide"), *NAMES, "stranger", has_sshd=way == "ssh") as sandbox:
            sandbox("up", sandbox.spec(sandbox.text(NAMES, JOBS)))
            yield sandbox


@pytest.mark.slow
def test_what_a_script_listens_on_is_for_the_clusters_hosts_alone(wide: Over, tmp_path: Path) -> None:
    (tmp_path / "listens.py").write_text(listening.SCRIPT)
    command = wide.start("run", tmp_path / "listens.py", stderr=subprocess.STDOUT)
    line = next(line for line in command.stdout if line.startswith("PORTS"))
    ports = json.loads(line.removeprefix("PORTS"))
    assert ports.keys() == listening.KINDS
    machines, alpha = wide.network.network, wide.network.address("alpha")
    for port in ports.values():
        assert dial(machines["beta"], alpha, port) == dial(machines["alpha"], alpha, port) == "connected"
        assert dial(machines["stranger"], alpha, port) == "TimeoutError"
    wide("cancel", wide.json("runs")[-1]["run"])
    command.communicate(timeout=60)


def dial(machine: Machine, address: str, port: int) -> str:
    program = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
    result = subprocess.run(
        machine.command(sys.executable, "-c", program, address, str(port)), capture_output=True, text=True, check=False
    )
    return result.stderr.strip().splitlines()[-1].partition(":")[0] if result.returncode else "connected"


#: Waits for every task of the cluster.
SESSION = """
import os
import tensorflow as tf
with tf.Graph().as_default(), tf.compat.v1.Session(os.environ["TFCLUSTER_MASTER"]) as session:
    session.run(tf.constant(1.0))
"""


def explain_wait(wide: Over, script: Path) -> str:
    """Run a script that waits until it is ended, and return the last explanation."""
    script.write_text(SESSION)
    output = wide("run", "script", "-o", "json", "--start-timeout", "4", script, code=124).stdout
    return str([event["message"] for event in lines_of(output) if event["event"] == "waiting"][-1])


@pytest.mark.slow
def test_a_script_that_waits_for_a_task_on_another_host_says_what_is_wrong_there(wide: Over, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    pid = wide.task("worker:1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        frozen = f"worker:1 on beta is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
        assert frozen in wide("stack", "worker:1").stdout
        assert explain_wait(wide, script) == f"waits.py:5 waits in Session.run: {frozen}"
    finally:
        with contextlib.suppress(ProcessLookupError):  # its agent may have replaced it
            os.kill(pid, signal.SIGCONT)
    wide.wait_until("running")
    alpha, beta = wide.network.network["alpha"], wide.network.address("beta")
    alpha.ip("route", "add", "unreachable", beta)
    try:
        message = explain_wait(wide, script)
        assert "worker:1 at " in message
        assert "on beta cannot be reached: No route to host, although it answers on beta" in message
    finally:
        alpha.ip("route", "del", "unreachable", beta)
    wide("run", script)


@pytest.mark.slow
def test_every_task_is_ready_on_its_host(wide: Over) -> None:
    status = wide.status()
    assert status["state"] == "running"
    assert {host["host"]: host["state"] for host in status["hosts"]} == dict.fromkeys((*NAMES, "localhost"), "up")
    assert {f"{task['job']}:{task['index']}": (task["host"], task["state"]) for task in status["tasks"]} == {
        "ps:0": ("alpha", "ready"),
        "worker:0": ("alpha", "ready"),
        "worker:1": ("beta", "ready"),
        "worker:2": ("gamma", "ready"),
        "worker:3": ("localhost", "ready"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("programs", [PROGRAMS[:3], PROGRAMS[3:]], ids=["computing", "training"])
def test_programs_give_the_same_answers_as_on_one_machine(
    wide: Over, tmp_path: Path, programs: tuple[tuple[str, set[str]], ...]
) -> None:
    path = tmp_path / "numbers.npy"
    np.save(path, np.random.default_rng(5).standard_normal(10_007))
    with make_sandbox(tmp_path) as alone:
        alone("up", alone.spec("name: alone\njobs: {ps: {tasks: 1}, worker: {tasks: 4}}"))
        for line, names in programs:
            program = line.format(numbers=path).split()
            distributed, local = (sandbox.json("run", *program)["result"] for sandbox in (wide, alone))
            values = {name: distributed[name] for name in names}
            assert values == pytest.approx({name: local[name] for name in names}, rel=1e-6), line


@pytest.mark.slow
def test_placements_come_from_the_servers_of_all_hosts(wide: Over) -> None:
    devices = ("--device", "y1=/job:worker/task:1", "--device", "y2=/job:worker/task:2")
    events = lines_of(wide("run", "graph", *devices, "--log-placement", "-o", "json").stdout)
    placed = {event["device"].split("/device")[0] for event in events if event["event"] == "placement"}
    assert placed >= {f"/job:worker/replica:0/task:{index}" for index in (1, 2)}


@pytest.mark.slow
@pytest.mark.every_way
def test_traces_come_from_the_servers_of_all_hosts(wide: Over, tmp_path: Path) -> None:
    run = wide("run", "pi", "--samples", "1e13", "--detach").stdout.strip()

    def traced() -> bool:  # on a busy machine, a worker may compute nothing meanwhile
        wide("profile", "worker", "--seconds", "0.5", "--logdir", tmp_path, code=None)
        latest = max((tmp_path / "plugins" / "profile").glob("*"), default=tmp_path)
        return sorted(path.name for path in latest.iterdir()) == [f"worker_{index}.xplane.pb" for index in range(4)]

    wait_for(traced)
    wide("cancel", run)


# Says of each address whether somebody answers there.
_DIALS = """
import socket, sys
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
        print("open")
    except TimeoutError:
        print("silent")
"""


@pytest.mark.slow
def test_only_the_hosts_of_the_cluster_can_connect(wide: Over) -> None:
    addresses = [task["address"] for task in wide.status()["tasks"]]
    tried = {
        name: wide.network.run(name, sys.executable, "-c", _DIALS, *addresses[:2]) for name in ("beta", "stranger")
    }
    assert tried == {"beta": "open\nopen\n", "stranger": "silent\nsilent\n"}


# Prints a number ten times a second, and ends when a file is there.
_COUNTS = """
import itertools, os, sys, time
for number in itertools.count():
    print(number, flush=True)
    if os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.every_way
def test_a_run_and_its_lines_outlive_the_loss_of_the_way(wide: Over, tmp_path: Path) -> None:
    lose_the_connection(wide, tmp_path, "way")


@pytest.mark.slow
def test_a_run_and_its_lines_outlive_the_loss_of_the_link(wide: Over, tmp_path: Path) -> None:
    lose_the_connection(wide, tmp_path, "link")


def lose_the_connection(wide: Over, tmp_path: Path, part: str) -> None:
    """Lose the host that a run's lines come from, and expect each line once."""
    script, end = tmp_path / "counts.py", tmp_path / "end"
    script.write_text(_COUNTS)
    pids = [task["pid"] for task in wide.status()["tasks"]]
    run = wide.start("run", script, end)
    before = [run.stdout.readline() for _ in range(5)]
    with wide.without(part, "alpha"):
        read_until(run.stderr, "alpha")  # it says what it waits for
    after = [run.stdout.readline() for _ in range(5)]
    end.touch()
    rest = run.stdout.readlines()
    assert run.wait(120) == 0
    numbers = list(map(int, [*before, *after, *rest]))
    assert numbers == list(range(len(numbers)))
    assert [task["pid"] for task in wide.status()["tasks"]] == pids


@pytest.mark.slow
def test_a_run_goes_on_while_its_leading_host_has_no_link(wide: Over) -> None:
    run = wide.start("run", "pi", "--samples", "1e10", "--seed", "1", "-o", "json")
    assert any(json.loads(line)["event"] == "progress" for line in run.stdout)
    with wide.without("link", "alpha"):
        time.sleep(6)  # for longer than the kernel takes to call a neighbour unreachable
    output, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    result = lines_of(output)[-1]
    assert (result["state"], result["result"]["samples"]) == ("succeeded", 10**10)
    assert abs(result["result"]["pi"] - math.pi) < 5 * result["result"]["stderr"]
    assert any("was lost" in note for note in result["notes"])


@pytest.mark.slow
@pytest.mark.every_way
def test_a_stopped_agent_is_continued(wide: Over) -> None:
    pid = agent_on(wide, "beta")
    for command in (["status"], ["status"], ["logs", "-n", "1"]):  # the first one has forwarded the socket
        os.kill(pid, signal.SIGSTOP)
        assert f"host 'beta': the agent of 'wide' was stopped (pid {pid}): continued\n" in wide(*command).stderr
    assert agent_on(wide, "beta") == pid
    with stopped_repeatedly(pid):
        assert f"host 'beta': the agent of 'wide' was stopped (pid {pid}): replaced\n" in wide("status").stderr
    assert agent_on(wide, "beta") != pid


def agent_on(wide: Over, host: str) -> int:
    return int(next(each["agent_pid"] for each in wide.status()["hosts"] if each["host"] == host))


@pytest.mark.slow
@pytest.mark.every_way
def test_a_busy_host_is_waited_for(wide: Over) -> None:
    pid = agent_on(wide, "beta")
    os.kill(pid, HANG)  # as on a host that has no time for it
    try:
        status, devices = wide.start("status"), wide.start("devices")
        named = wide("status", "--timeout", "1", code=5).stderr
        time.sleep(9)
        assert status.poll() is devices.poll() is None
    finally:
        os.kill(pid, RESUME)
    for command in (status, devices):
        _, errors = command.communicate(timeout=60)
        assert command.returncode == 0, errors
    assert "host 'beta' has not answered within 1 s" in named


@pytest.mark.slow
def test_a_lost_link_is_noticed_without_a_timeout(wide: Over) -> None:
    with wide.without("link", "beta"):
        errors = wide("status", "--timeout", "6000", code=5).stderr
    assert "host 'beta' cannot be reached: " in errors
    assert "has not answered within" not in errors
    assert wide.status()["state"] == "running"


@pytest.mark.slow
@pytest.mark.every_way
def test_events_are_followed_through_the_loss_of_a_connection(wide: Over) -> None:
    def of_beta(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for event in events if event["host"] == "beta"]

    before = of_beta(lines_of(wide("events", "-o", "json").stdout))
    follow = wide.start("events", "-f", "-o", "json")
    followed: list[dict[str, Any]] = []
    while not of_beta(followed):
        followed.append(json.loads(follow.stdout.readline()))
    with wide.without("way", "beta"):
        read_until(follow.stderr, "beta")
    wide("restart", "worker:1", "--yes")
    kept = of_beta(lines_of(wide("events", "-o", "json").stdout))
    assert len(kept) > len(before)
    while len(of_beta(followed)) < len(kept):
        followed.append(json.loads(follow.stdout.readline()))
    assert of_beta(followed) == kept


@pytest.mark.slow
@pytest.mark.needs("sshd")
@pytest.mark.every_way
def test_an_unreachable_host_is_reported_and_taken_down_later(tmp_path: Path, way: str) -> None:
    with over(tmp_path, "alpha", "beta", has_sshd=way == "ssh") as sandbox:
        jobs = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 1, hosts: [beta]}\n"
        sandbox("up", sandbox.spec(sandbox.text(("alpha", "beta"), jobs)))
        with sandbox.without("link" if way == "ssh" else "way", "beta"):
            status = sandbox.status(code=5)
            assert [(host["host"], host["state"]) for host in status["hosts"]] == [
                ("alpha", "up"),
                ("beta", "unreachable"),
            ]
            assert "worker:0 on beta" in sandbox("down", code=5).stderr
        sandbox("down")
        sandbox("status", "-c", "wide", code=3)
        assert not sandbox.network.leftovers()


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_eight_hosts_at_once(tmp_path: Path) -> None:
    names = tuple(f"h{number}" for number in range(8))
    with over(tmp_path, *names) as sandbox:
        sandbox("up", sandbox.spec(sandbox.text(names, "jobs: {worker: {tasks: 8}}\n")))
        assert [task["host"] for task in sandbox.status()["tasks"]] == list(names)
        sandbox("down")
        assert not sandbox.network.leftovers()


# Has the agent's TensorFlow be of another version.
_OTHER_VERSION = """
import importlib.abc, importlib.machinery, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "tfcluster.processes.servers.c_api":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            module.TensorFlow.version = property(lambda self: "2.9.9", lambda self, value: None)
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_different_versions_are_refused_unless_allowed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_OTHER_VERSION)
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    with over(tmp_path, "alpha", "beta") as sandbox:
        spec = sandbox.spec(sandbox.text(("alpha", "beta"), "jobs: {worker: {tasks: 2}}\n", {"beta": other}))
        assert "2.9.9 on beta" in sandbox("up", spec, code=1).stderr
        wait_for(lambda: not sandbox.network.leftovers())
        sandbox("up", spec, "--allow-version-mismatch")
        versions = [host["tensorflow"] for host in sandbox.status()["hosts"]]
        assert versions[1] == "2.9.9" != versions[0]


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_the_problems_of_all_hosts_are_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TEST_CHANGES", "TEST_SETTINGS"):  # which a Python outside of tfcluster's environment does not find
        monkeypatch.delenv(name, raising=False)
    names = ("alpha", "beta", "gamma", "delta")
    with over(tmp_path, *names) as sandbox:
        sandbox.network.know("alpha", "gamma", "delta")
        bare = tmp_path / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
        pythons = {"gamma": bare / "bin" / "python"}
        spec = sandbox.spec(sandbox.text(names, "jobs: {worker: {tasks: 4}}\n", pythons))
        with sandbox.without("link", "delta"):
            error = sandbox("up", spec, code=5).stderr
            report = sandbox("doctor", spec, code=5).stdout
        for told in (error, report):
            assert "host key" in told
            assert f"{bare}/bin/python-mpipinstall" in "".join(told.split()), "a table may wrap it anywhere"
            assert "delta" in told
        assert not list(sandbox.network.folder.glob("*/state/tfcluster/*/*/journal.json"))
