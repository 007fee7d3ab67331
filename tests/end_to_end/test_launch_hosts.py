"""`tfcluster launch` over several hosts with real sshds: members on all of them, one coordinator, closed ports."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Hosts
from tests.conftest import SCRIPTS, environment_of, lines_of, read_until, wait_for
from tests.end_to_end.test_ssh import dial
from tests.hosts import HostsSandbox

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  worker: {tasks: 3, hosts: [alpha, beta]}\n"

HOSTS = Hosts(
    NAMES,
    JOBS,
    strangers=("stranger",),
    settings={"LINK_SECONDS": 5},  # after which a host is lost; the kernel answers for a busy process
    files={
        "code/act.py": (SCRIPTS / "act_on_hosts.py").read_text(),
        "code/beside.py": "NAME = 'module'\n",
        "code/train.py": (SCRIPTS / "add_up.py").read_text(),
    },
)


def launch(hosts: HostsSandbox, *arguments: str, code: int) -> list[dict[str, Any]]:
    """The events of a launch."""
    return lines_of(hosts("launch", "-o", "json", *arguments, code=code, cwd=hosts.folder / "code").stdout)


def programs(hosts: HostsSandbox) -> list[str]:
    return [line for line in hosts.network.processes().values() if line.endswith((" program", " host"))]


def test_members_run_on_the_hosts_of_their_tasks_with_the_code_beside_them(hosts: HostsSandbox) -> None:
    events = launch(hosts, "act.py", "worker:0=0", "worker:1=0", "worker:2=0", code=0)
    members = {each["task"]: each["host"] for each in events if each["event"] == "member"}
    assert members == {"worker:0": "alpha", "worker:1": "beta", "worker:2": "alpha"}
    printed = [json.loads(each["line"]) for each in events if each["event"] == "output"]
    assert [each["beside"] for each in printed] == ["module"] * 3
    assert printed[0]["cluster"] == printed[1]["cluster"] == printed[2]["cluster"]
    metrics = {each["task"]: (each["name"], each["value"]) for each in events if each["event"] == "metric"}
    assert metrics == {f"worker:{rank}": ("rank", rank) for rank in range(3)}
    addresses = [hosts.network.address(host) for host in ("alpha", "beta", "alpha")]
    assert [each.rpartition(":")[0] for each in printed[0]["cluster"]] == addresses
    (run,) = [each for each in hosts.json("runs") if each["run"] == events[0]["run"]]
    assert run["state"] == "succeeded"
    wait_for(lambda: not programs(hosts))


@pytest.mark.slow
def test_code_that_is_sent_is_said_once_and_a_killed_command_is_attached_to(hosts: HostsSandbox) -> None:
    (hosts.folder / "code" / "beside.py").write_text("NAME = 'another module'\n")
    command = hosts.start("launch", hosts.folder / "code" / "act.py")
    wait_for(lambda: len(hosts.pids(" program")) == 3)
    command.kill()
    _, error = command.communicate(timeout=60)
    (sent,) = [line for line in error.splitlines() if "sending" in line]
    assert sent.startswith("sending to alpha, beta: ")

    run = hosts.json("runs")[-1]["run"]
    wait_for(lambda: hosts("logs", run).stdout.count("another module") == 3)
    hosts("cancel", run, env={"TFCLUSTER_CLUSTER": "wide"})
    assert hosts("attach", run, code=1).stdout.count("another module") == 3
    (hosts.folder / "code" / "beside.py").write_text("NAME = 'module'\n")


@pytest.mark.slow
def test_files_of_members_on_all_hosts_are_fetched(hosts: HostsSandbox) -> None:
    path = "os.path.join(os.environ['TFCLUSTER_OUTPUT'], os.environ['TFCLUSTER_TASK'])"
    (hosts.folder / "code" / "writes.py").write_text(f"import os\nopen({path}, 'w').write('x')\n")
    run = launch(hosts, "--name", "writers", "writes.py", code=0)[0]["run"]
    fetched = hosts.json("fetch", "writers", "fetched")
    assert (fetched["run"], fetched["files"]) == (run, 3)
    found = sorted(str(path.relative_to(hosts.folder / "fetched")) for path in (hosts.folder / "fetched").rglob("*:*"))
    assert found == ["alpha/worker:0", "alpha/worker:2", "beta/worker:1"]
    again = hosts.json("rerun", "writers")
    assert (again["program"], again["state"]) == ("script", "succeeded")


@pytest.mark.slow
def test_a_failure_on_one_host_ends_the_members_on_the_other(hosts: HostsSandbox) -> None:
    result = launch(hosts, "act.py", "worker:1=5", code=5)[-1]
    assert result["result"].pop("metrics")["worker:1"] == {"rank": 1}
    assert result["result"] == {"exit_code": 5, "task": "worker:1", "host": "beta", "restarts": 0}
    assert result["error"]["message"].startswith("worker:1 on beta ended with exit code 5")
    wait_for(lambda: not programs(hosts))


@pytest.mark.slow
def test_the_coordinator_listens_until_all_hosts_are_there(hosts: HostsSandbox) -> None:
    run = hosts("launch", "--detach", "act.py", cwd=hosts.folder / "code").stdout.strip()
    wait_for(lambda: len(hosts("logs", run).stdout.splitlines()) == 3)
    events = hosts.network.home("alpha").glob(f"state/tfcluster/wide/alpha/runs/{run}/events.jsonl")
    (address,) = [
        json.loads(line)["address"]
        for path in events
        for line in path.read_text().splitlines()
        if json.loads(line)["event"] == "coordinator"
    ]
    host, _, port = address.rpartition(":")
    assert (
        dial(hosts, "stranger", host, int(port)) == dial(hosts, "beta", host, int(port)) == {"ConnectionRefusedError"}
    )
    stacks = hosts("stack", run).stdout
    assert [stacks.count(f"worker:{index} program") for index in range(3)] == [1, 1, 1]
    assert stacks.count("act.py") == 3
    hosts("cancel", run)
    wait_for(lambda: not programs(hosts))
    assert hosts.json("runs")[-1]["state"] == "cancelled"


@pytest.mark.slow
def test_a_host_that_is_lost_before_it_has_connected_is_named_at_once(hosts: HostsSandbox) -> None:
    alpha = hosts.network.address("alpha")
    with hosts.network.network["beta"].losing(alpha):
        command = hosts.start("launch", hosts.folder / "code" / "act.py")
        wait_for(lambda: len(programs(hosts)) == 1)  # alpha's own
        runs = hosts.network.home("beta") / "state" / "tfcluster" / "wide" / "beta" / "runs"
        run = hosts.json("runs")[-1]["run"]
        wait_for(lambda: (runs / run).exists())
        with hosts.without("way", "beta"):
            _, error = command.communicate(timeout=50)
        assert command.returncode == 5
        message = error.partition("error: ")[2].splitlines()
        assert message[0] == f"{run} was not started"
        assert message[1].startswith("host 'beta' cannot be reached: ")
        assert message[2].startswith("hint: ")
        error = hosts("launch", hosts.folder / "code" / "act.py", code=1).stderr
        assert re.search(r"error: (\S+) was not started\n.*beta.*: \1 cannot start on host beta: ", error)
    wait_for(lambda: not programs(hosts))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["link", "death"])
def test_a_restart_waits_for_a_host_that_was_lost(hosts: HostsSandbox, loss: str) -> None:
    script = hosts.folder / "code" / "act.py"
    command = hosts.start("launch", "--max-restarts", "1", script, "first=1", stderr=subprocess.STDOUT)
    for line in command.stdout:
        if '"act": "wait"' in line and "worker:1" in line:
            break
    of_beta = [
        pid
        for pid in hosts.network.processes()
        if f"{hosts.network.home('beta')}/state".encode() in environment_of(pid)
    ]
    with hosts.without("link" if loss == "link" else "way", "beta"):
        for pid in of_beta if loss == "death" else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        read_until(command.stdout, "the connection to host beta is lost: restarting all (0 restarts left)")
    output = command.communicate(timeout=120)[0]
    assert command.returncode == 0, output
    assert output.count('"act": "0"') == 3
    wait_for(lambda: not programs(hosts))
    hosts.wait_until("running")


@pytest.mark.slow
def test_a_member_that_is_frozen_is_to_blame_for_the_errors_of_the_others(hosts: HostsSandbox) -> None:
    """TensorFlow ends the training on all members some seconds after one does not answer any more."""
    command = hosts.start("launch", hosts.folder / "code" / "train.py")
    read_until(command.stdout, "worker:1 | total 6.0")
    (pid,) = hosts.pids("worker:1 program")
    os.kill(pid, signal.SIGSTOP)
    _, error = command.communicate(timeout=120)
    message = error.partition("\nerror: ")[2].splitlines()
    assert message[0] == f"worker:1 on beta is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
    assert re.fullmatch(r"after that, worker:[02] on alpha failed: .*UnavailableError: .*task:1", message[1])
    assert command.returncode == 1
    wait_for(lambda: not programs(hosts))


@pytest.mark.slow
def test_a_host_that_is_lost_ends_the_group_of_a_private_cluster(hosts: HostsSandbox) -> None:
    text = hosts.text(NAMES, JOBS).replace("name: wide", "name: shut\nnetwork: private")
    hosts("up", hosts.spec(text, "shut.yaml"))
    try:
        command = hosts.start("launch", "-c", "shut", hosts.folder / "code" / "act.py", stderr=subprocess.STDOUT)
        read_until(command.stdout, "worker:1")
        with hosts.without("link", "beta"):
            output = command.communicate(timeout=90)[0]
        assert "error: the connection to host beta is lost" in output
        assert command.returncode == 5
        wait_for(lambda: not programs(hosts))
    finally:
        hosts("down", "-c", "shut")


# Writes a byte each tenth of a second to a file with the member's name, in the folder that is its argument.
COUNT = """
import os, sys, time
while True:
    with open(os.path.join(sys.argv[1], os.environ["TFCLUSTER_TASK"]), "a") as file:
        file.write("x")
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_the_cluster_of_a_command_outlives_its_stop_and_not_its_death(hosts: HostsSandbox, tmp_path: Path) -> None:
    spec = hosts.spec(hosts.text(NAMES, JOBS).replace("name: wide", "name: brief"), "brief.yaml")
    script = hosts.folder / "code" / "count.py"
    script.write_text(COUNT)
    env = hosts.with_settings({"LAUNCH_REMOTE_LEASE_SECONDS": 3})
    command = hosts.start("launch", "--spec", spec, script, tmp_path, env=env)

    def counts() -> list[int]:
        return [path.stat().st_size for path in tmp_path.iterdir()]

    wait_for(lambda: len(counts()) == 3)
    command.send_signal(signal.SIGSTOP)
    before = max(counts())
    wait_for(lambda: min(counts()) > before + 50)  # longer than the lease
    command.kill()
    assert "note: a `tfcluster launch` has started brief" in hosts("status", "-c", "brief").stderr
    # The link process ends some minutes after the last command.
    wait_for(lambda: set(hosts.pids("brief")) == set(hosts.pids("tfcluster: brief connections")))
    acts = [f"worker:{index}=0" for index in range(3)]
    result = hosts("launch", "--spec", spec, "act.py", *acts, cwd=hosts.folder / "code")
    assert len(result.stdout.splitlines()) == 3
    wait_for(lambda: not hosts.pids("brief"))
