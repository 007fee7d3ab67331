"""A cluster over real sshds: one ps and four workers on three hosts and on the machine where the command runs."""

from __future__ import annotations

import itertools
import json
import os
import shlex
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
from tests.hosts import CHANGED, HostsSandbox, over
from tests.namespaces import Machine

pytestmark = [pytest.mark.slow, pytest.mark.needs("sshd")]

NAMES = ("alpha", "beta", "gamma")
JOBS = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 4, hosts: [alpha, beta, gamma, localhost]}\n"
PROGRAMS = (
    ("graph", {"value"}),
    ("pi --samples 1e6 --seed 7", {"inside", "pi"}),
    ("mean {numbers}", {"mean", "variance", "count"}),
    ("linear --sync --steps 40 --seed 3", {"w", "b", "steps"}),
    ("expfit --mode model-parallel --steps 10 --seed 3", {"loss"}),
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
    ports = json.loads(read_until(command.stdout, "PORTS")[-1].removeprefix("PORTS"))
    assert len(ports) == 6
    machines, alpha = hosts.network.network, hosts.network.address("alpha")
    for port in (*ports.values(), int(hosts.task("ps:0")["address"].partition(":")[2])):
        assert dial(machines["beta"], alpha, port) == dial(machines["alpha"], alpha, port) == "connected"
        assert dial(machines["stranger"], alpha, port) == "TimeoutError"
    hosts("cancel", hosts.json("runs")[-1]["run"])
    command.communicate(timeout=60)


def dial(machine: Machine, address: str, port: int) -> str:
    program = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
    result = subprocess.run(
        machine.command(sys.executable, "-c", program, address, str(port)), capture_output=True, text=True, check=False
    )
    return result.stderr.strip().splitlines()[-1].partition(":")[0] if result.returncode else "connected"


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
        status, devices = hosts.start("status"), hosts.start("devices")
        named = hosts("status", "--timeout", "1", code=5).stderr
        time.sleep(9)
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


def test_a_hundred_commands_at_once_share_the_links(hosts: HostsSandbox) -> None:
    hosts("status")
    sessions = hosts.network.sessions()
    commands = [hosts.start("status", "-o", "json") for _ in range(100)]
    for command in commands:
        shown, errors = command.communicate(timeout=250)
        assert (command.returncode, errors) == (0, "")
        assert {host["state"] for host in json.loads(shown)["hosts"]} == {"up"}
    assert hosts.network.sessions() == sessions


def test_events_are_followed_through_the_loss_of_a_connection(hosts: HostsSandbox) -> None:
    follow = hosts.start("events", "-f", "-o", "json")
    of_beta = (event for event in map(json.loads, follow.stdout) if event["host"] == "beta")
    followed = [next(of_beta)]
    with hosts.without("way", "beta"):
        read_until(follow.stderr, "beta")
    hosts("restart", "worker:1", "--yes")
    kept = [event for event in hosts.json_lines("events") if event["host"] == "beta"]
    assert [*followed, *itertools.islice(of_beta, len(kept) - 1)] == kept
    assert "restart" in kept[-1]["detail"] or kept[-1]["event"] == "ready"


def test_an_unreachable_host_is_reported_and_taken_down_later(tmp_path: Path) -> None:
    with over(tmp_path, "alpha", "beta") as sandbox:
        jobs = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 1, hosts: [beta]}\n"
        sandbox("up", sandbox.spec(sandbox.text(("alpha", "beta"), jobs)))
        with sandbox.without("link", "beta"):
            hosts = {host["host"]: host["state"] for host in sandbox.status(code=5)["hosts"]}
            assert hosts == {"alpha": "up", "beta": "unreachable"}
            errors = sandbox("status", "--timeout", "6000", code=5).stderr
            assert "host 'beta' cannot be reached: " in errors, "without a timeout"
            assert "worker:0 on beta" in sandbox("down", code=5).stderr
        sandbox("down")
        sandbox("status", "-c", "wide", code=3)
        wait_for(lambda: not sandbox.network.leftovers())


def test_status_leaves_the_entry_of_a_cluster_that_another_machine_took_down(needs_sshd: None, tmp_path: Path) -> None:
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


def test_a_host_without_psutil_shows_no_usage_and_all_else_works(tmp_path: Path) -> None:
    names = ("alpha", "beta")
    with over(tmp_path, *names) as sandbox:
        lacking = tmp_path / "lacking"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(lacking)], check=True)
        [packages] = lacking.glob("lib/python*/site-packages")
        (packages / "psutil.py").write_text("raise ModuleNotFoundError(name='psutil')\n")
        (packages / "others.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
        jobs = "jobs: {worker: {tasks: 2, hosts: [alpha, beta]}}\n"
        spec = sandbox.spec(sandbox.text(names, jobs, {"beta": lacking / "bin" / "python"}))
        (note,) = [each for each in sandbox.json("doctor", spec)["checks"] if each["check"] == "usage"]
        assert (note["host"], note["ok"]) == ("beta", True)
        assert f"`{lacking}/bin/python -m pip install psutil`" in note["hint"]
        sandbox("up", spec)
        status = sandbox.status()
        assert [host["load"] is None for host in status["hosts"]] == [False, True]
        assert [task["rss_bytes"] is None for task in status["tasks"]] == [False, True]
        sandbox("run", "pi", "--samples", "1e5")
        sandbox("down")


def test_different_versions_are_refused_unless_allowed(tmp_path: Path) -> None:
    version = 'TensorFlow.version = property(lambda self: "2.9.9", lambda self, value: None)'
    changes = json.dumps({"tfcluster.processes.servers.c_api": version})
    other = tmp_path / "python"
    variables = f"TEST_CHANGES={shlex.quote(changes)} PYTHONPATH={CHANGED}"
    other.write_text(f'#!/bin/sh\n{variables} exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    with over(tmp_path, "alpha", "beta") as sandbox:
        spec = sandbox.spec(sandbox.text(("alpha", "beta"), "jobs: {worker: {tasks: 2}}\n", {"beta": other}))
        assert "2.9.9 on beta" in sandbox("up", spec, code=1).stderr
        wait_for(lambda: not sandbox.network.leftovers())
        sandbox("up", spec, "--allow-version-mismatch")
        versions = [host["tensorflow"] for host in sandbox.status()["hosts"]]
        assert versions[1] == "2.9.9" != versions[0]
