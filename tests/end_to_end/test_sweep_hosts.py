"""`tfcluster sweep` over several hosts with real sshds: trials on all of them, and again elsewhere when one dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Hosts
from tests.conftest import Command, environment_of, wait_for
from tests.hosts import HostsSandbox

NAMES = ("alpha", "beta", "gamma")
JOBS = "jobs:\n  worker: {tasks: 3, hosts: [alpha, beta, gamma]}\n"
# Waits for a file, and reports where it has run.
TRIAL = """
import os, sys, time
import beside, tfcluster
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
tfcluster.metric("loss", 1 / int(sys.argv[1]), step=1)
open(os.path.join(os.environ["TFCLUSTER_OUTPUT"], "attempt"), "w").write(os.environ["TFCLUSTER_ATTEMPT"])
print(beside.NAME, os.environ["TFCLUSTER_TASK"], "on", os.environ["TFCLUSTER_HOSTS"], flush=True)
"""


HOSTS = Hosts(NAMES, JOBS, files={"code/trial.py": TRIAL, "code/beside.py": "NAME = 'module'\n"})


def next_trial(command: Command, state: str, host: str | None = None) -> dict[str, Any]:
    """The next event of a trial in a state, on a host."""
    for line in command.stdout:
        event = json.loads(line)
        if event.get("event") == "trial" and event["state"] == state and host in (None, event["host"]):
            return dict(event)
    raise AssertionError(f"no trial is {state}: {command.stderr.read()}")


def kill_host(hosts: HostsSandbox, name: str) -> None:
    """Kill all that runs on a host."""
    home = f"{hosts.network.home(name)}/state".encode()
    for pid in [pid for pid in hosts.network.processes() if home in environment_of(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_twelve_trials_over_three_hosts_of_which_one_dies(hosts: HostsSandbox, tmp_path: Path) -> None:
    go = tmp_path / "go"
    arguments = ("--best", "loss", hosts.folder / "code" / "trial.py", "{1..12}", go)
    command = hosts.start("sweep", "-o", "json", *arguments)
    on_gamma = next_trial(command, "running", "gamma")
    wait_for(lambda: len(hosts.pids(" program")) == 3)
    with hosts.without("way", "gamma"):
        kill_host(hosts, "gamma")
        lost = next_trial(command, "pending")
        assert (lost["trial"], lost["problem"]) == (on_gamma["trial"], "the connection to host gamma is lost")
        go.touch()
        output, error = command.communicate(timeout=120)
    assert command.returncode == 0, error
    result = json.loads(output.splitlines()[-1])
    trials = result["result"]["trials"]
    assert [each["parameters"] for each in trials] == [{"argument-1": number} for number in range(12, 0, -1)]
    assert {each["state"] for each in trials} == {"succeeded"}
    assert {each["host"] for each in trials} == {"alpha", "beta"}
    assert len(trials) == 12
    printed = [json.loads(line)["line"] for line in output.splitlines() if json.loads(line)["event"] == "output"]
    assert sorted(printed) == sorted(f"module trial:{each['trial']} on {each['host']}" for each in trials)
    hosts.wait_until("running")
    fetched = hosts.json("fetch", result["run"], str(tmp_path / "fetched"))
    assert fetched["files"] == 12
    attempts = {path.parent.name: path.read_text() for path in (tmp_path / "fetched").glob("*/trial-*/attempt")}
    assert [name for name, attempt in attempts.items() if attempt != "0"] == [f"trial-{lost['trial']}"]
    wait_for(lambda: not hosts.pids(" host"))


@pytest.mark.slow
def test_a_host_that_is_back_gets_trials_again(hosts: HostsSandbox, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = hosts.start("sweep", "-o", "json", hosts.folder / "code" / "trial.py", "{1..3}", go)
    on_gamma = next_trial(command, "running", "gamma")
    wait_for(lambda: len(hosts.pids(" program")) == 3)
    with hosts.without("way", "gamma"):
        kill_host(hosts, "gamma")
        next_trial(command, "pending")
    again = next_trial(command, "running", "gamma")
    assert (again["trial"], again["attempt"]) == (on_gamma["trial"], 1)
    go.touch()
    output, error = command.communicate(timeout=120)
    assert command.returncode == 0, error
    trials = json.loads(output.splitlines()[-1])["result"]["trials"]
    assert [each["host"] for each in trials] == ["alpha", "beta", "gamma"]
    hosts.wait_until("running")


@pytest.mark.slow
def test_a_sweep_is_not_started_while_a_host_is_away(hosts: HostsSandbox, tmp_path: Path) -> None:
    with hosts.without("way", "gamma"):
        kill_host(hosts, "gamma")
        result = hosts("sweep", hosts.folder / "code" / "trial.py", "{1..3}", tmp_path / "go", code=5)
    assert "gamma" in result.stderr
    wait_for(lambda: not hosts.pids(" program"))
    hosts.wait_until("running")
