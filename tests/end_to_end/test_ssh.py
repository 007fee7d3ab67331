"""A cluster over real sshds: one ps and four workers on three hosts and on the machine where the command runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.clusters import Hosts
from tests.conftest import (
    HANG,
    HANGING_AGENT,
    RESUME,
    SCRIPTS,
    make_sandbox,
    read_until,
    wait_for,
)
from tests.end_to_end.ways import check_way
from tests.hosts import HostsSandbox, over

pytestmark = [pytest.mark.slow, pytest.mark.needs("sshd")]

NAMES = ("alpha", "beta", "gamma")
JOBS = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 4, hosts: [alpha, beta, gamma, localhost]}\n"
PROGRAMS = (
    ("mean {numbers}", {"mean", "variance", "count"}),
    ("linear --sync --steps 20 --seed 3", {"w", "b", "steps"}),
)


#: The stranger is a host that is not of the cluster.
HOSTS = Hosts(
    NAMES,
    JOBS,
    strangers=("stranger",),
    warm=True,
    settings={"FAILED_PROBES_MAX": 6},  # a frozen server stays for a while
    changes=dict([HANGING_AGENT]),
)


def test_what_tasks_and_scripts_listen_on_is_for_the_clusters_hosts_alone(hosts: HostsSandbox) -> None:
    command = hosts.start("run", SCRIPTS / "listens.py", stderr=subprocess.STDOUT)
    listening = json.loads(read_until(command.stdout, "PORTS")[-1].removeprefix("PORTS"))
    assert len(listening) == 6
    ports = [*listening.values(), int(hosts.task("ps:0")["address"].partition(":")[2])]
    dialled = {
        name: dial(hosts, name, hosts.network.address("alpha"), *ports) for name in ("alpha", "beta", "stranger")
    }
    assert dialled == {"alpha": {"connected"}, "beta": {"connected"}, "stranger": {"TimeoutError"}}
    hosts("cancel", hosts.json("runs")[-1]["run"])
    command.communicate(timeout=60)


_DIAL = (SCRIPTS / "dial.py").read_text()


def dial(hosts: HostsSandbox, machine: str, address: str, *ports: int) -> set[str]:
    """What happens to connections from a machine to an address, each for two seconds at most."""
    return {*hosts.network.run(machine, sys.executable, "-c", _DIAL, address, *map(str, ports)).split()}


def test_programs_give_the_same_answers_as_on_one_machine(hosts: HostsSandbox, tmp_path: Path) -> None:
    path = tmp_path / "numbers.npy"
    np.save(path, np.random.default_rng(5).standard_normal(10_007))
    with make_sandbox(tmp_path) as alone:
        alone("up", alone.spec("name: alone\njobs: {ps: {tasks: 1}, worker: {tasks: 4}}"))
        for line, names in PROGRAMS:
            program = line.format(numbers=path).split()
            distributed, local = (sandbox.json("run", *program)["result"] for sandbox in (hosts, alone))
            values = {name: distributed[name] for name in names}
            assert values == pytest.approx({name: local[name] for name in names}, rel=1e-6), line


def test_traces_come_from_the_servers_of_all_hosts(hosts: HostsSandbox, tmp_path: Path) -> None:
    run = hosts("run", "pi", "--samples", "1e13", "--detach").stdout.strip()

    def traced() -> bool:  # on a busy machine, a worker may compute nothing meanwhile
        hosts("profile", "worker", "--seconds", "0.5", "--logdir", tmp_path, code=None)
        latest = max((tmp_path / "plugins" / "profile").glob("*"), default=tmp_path)
        return sorted(path.name for path in latest.iterdir()) == [f"worker_{index}.xplane.pb" for index in range(4)]

    wait_for(traced)
    hosts("cancel", run)


# Prints a number ten times a second, and ends when a file is there.
_COUNTS = """
import itertools, os, sys, time
for number in itertools.count():
    print(number, flush=True)
    if os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


def test_a_run_and_its_lines_outlive_the_loss_of_the_way_and_of_the_link(hosts: HostsSandbox, tmp_path: Path) -> None:
    """The run is on the host that is lost; each line arrives once."""
    script, end = tmp_path / "counts.py", tmp_path / "end"
    script.write_text(_COUNTS)
    pids = hosts.tasks("pid")
    run = hosts.start("run", script, end)
    lines = [run.stdout.readline() for _ in range(5)]
    for part in ("way", "link"):
        with hosts.without(part, "alpha"):
            read_until(run.stderr, "alpha")  # it says what it waits for
        lines += [run.stdout.readline() for _ in range(5)]
    end.touch()
    numbers = list(map(int, [*lines, *run.stdout]))
    assert run.wait(120) == 0
    assert numbers == list(range(len(numbers)))
    assert hosts.tasks("pid") == pids


def agent_on(hosts: HostsSandbox, host: str) -> int:
    return int(next(each["agent_pid"] for each in hosts.status()["hosts"] if each["host"] == host))


def test_a_busy_host_is_waited_for(hosts: HostsSandbox) -> None:
    pid = agent_on(hosts, "beta")
    os.kill(pid, HANG)  # as on a host that has no time for it
    try:
        soon = hosts.with_settings({"RPC_TIMEOUT_SECONDS": 3.0})  # for agents of this machine
        status, devices = hosts.start("status", env=soon), hosts.start("devices", env=soon)
        named = hosts("status", "--timeout", "1", code=5).stderr
        time.sleep(4)
        assert status.poll() is devices.poll() is None
    finally:
        os.kill(pid, RESUME)
    for command in (status, devices):
        _, errors = command.communicate(timeout=60)
        assert command.returncode == 0, errors
    assert "host 'beta' has not answered within 1 s" in named


def test_a_stopped_agent_is_named_with_the_command_that_continues_it(hosts: HostsSandbox) -> None:
    pid = agent_on(hosts, "beta")
    os.kill(pid, signal.SIGSTOP)
    sooner = hosts.with_settings({"RPC_SLOW_TIMEOUT_SECONDS": 8.0})
    try:
        named = hosts("status", code=5, env=sooner).stderr
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"the agent there (pid {pid}) has not answered within 8 s" in named
    assert f"`ssh beta 'kill -CONT {pid}'`" in named
    assert agent_on(hosts, "beta") == pid


def test_all_that_a_command_does_on_a_host(hosts: HostsSandbox) -> None:
    check_way(hosts, "wide", "alpha")


def test_many_commands_at_once_share_the_links(hosts: HostsSandbox) -> None:
    hosts("status")
    sessions = hosts.network.sessions()
    commands = [hosts.start("status", "-o", "json") for _ in range(12)]  # sshd allows ten sessions by default
    for command in commands:
        shown, errors = command.communicate(timeout=250)
        assert (command.returncode, errors) == (0, "")
        assert {host["state"] for host in json.loads(shown)["hosts"]} == {"up"}
    assert hosts.network.sessions() == sessions


def test_status_leaves_the_entry_of_a_cluster_that_another_machine_took_down(tmp_path: Path) -> None:
    with over(tmp_path, "alpha") as sandbox:
        sandbox("up", sandbox.spec(sandbox.text(("alpha",), "jobs: {worker: {tasks: 1}}\n")))
        elsewhere = {"XDG_STATE_HOME": str(tmp_path / "state of another machine")}
        sandbox("down", env=elsewhere, cwd=tmp_path)
        for _ in range(2):
            shown = sandbox("status", "-c", "wide", code=3).stderr
            assert "cluster 'wide' is not running on any of its hosts" in shown
            assert "`tfcluster down -c wide` forgets its hosts" in shown
        assert "error: cluster 'wide' is not running\n" in sandbox("down", "-c", "wide", code=3).stderr
        assert "not running on any of its hosts" not in sandbox("status", "-c", "wide", code=3).stderr
