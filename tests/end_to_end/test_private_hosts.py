"""`network: private` over several hosts, as an ordinary account: the tasks reach each other through forwarders.

This machine plays both hosts, see tests/played.py; tests/processes/test_forwarder.py has whom forwarders refuse.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
from typing import Any

import psutil
import pytest

from tests.accounts import account
from tests.clusters import Cluster
from tests.conftest import SCRIPTS, Sandbox, wait_for
from tests.end_to_end.test_private_network import intrude, targets_of
from tfcluster.os.process_handle import ProcessHandle

#: tests/processes/test_forwarder.py and test_private_network.py are faster.
pytestmark = pytest.mark.slow

_SPEC = """name: two
network: private
hosts: {alpha: {address: 127.0.0.2}, beta: {address: 127.0.0.3}}
jobs:
  ps: {tasks: 1, hosts: [beta]}
  worker: {tasks: 2, hosts: [alpha, beta]}
"""
# The first member of a group listens at its address, and the other ones connect to it.
_MEMBER = (SCRIPTS / "says_hello.py").read_text()


CLUSTER = Cluster(
    _SPEC,
    warm=True,
    # On a busy machine, a probe that gets no answer in a second says nothing of the forwarders.
    settings={"RUN_PROBE_SECONDS": 60.0, "RUN_REMOTE_PROBE_SECONDS": 60.0},
    is_played=True,
    has_account=True,
)


def state(sandbox: Sandbox, host: str, name: str) -> Any:
    return json.loads((sandbox.folder / "state" / "tfcluster" / "two" / host / name).read_text())


def forwarder(sandbox: Sandbox, host: str) -> ProcessHandle:
    recorded = state(sandbox, host, "forwarder.json")
    return ProcessHandle(recorded["pid"], recorded["start_time"])


def both(sandbox: Sandbox) -> bool:
    """Whether a run, which is on alpha, reaches the tasks of both hosts."""
    return len(sandbox.json_lines("run", "pi", "--samples", "1e3")[0]["devices"]) == 2


def test_tasks_of_all_hosts_compute_together(cluster: Sandbox) -> None:
    status = cluster.status()
    assert (status["state"], status["network"]) == ("running", "private")
    assert {task["address"].partition(":")[0] for task in status["tasks"]} == {"localhost"}
    assert both(cluster)  # `up` has waited for the forwarders


def test_a_program_on_another_machine_is_told_where_to_start(cluster: Sandbox) -> None:
    source = (
        "import tfcluster; from tests.played import Played, module; module.make_transport = Played; "
        "cluster = tfcluster.connect('two'); print(cluster.name); cluster.target"
    )
    result = cluster.execute(*cluster.command[:-2], "-c", source)
    assert result.stdout == "two\n", result.stderr
    assert "ClusterError: the servers of two are in its private network, and this machine is not" in result.stderr
    assert "hint: Start it on one: `tfcluster exec --on " in result.stderr


def test_only_forwarders_listen_outside_of_the_private_networks(cluster: Sandbox) -> None:
    places = state(cluster, "alpha", "forwarding.json")["forwarders"]
    expected = {(forwarder(cluster, host).pid, place["port"]) for host, place in places.items()}

    def listening() -> set[tuple[int | None, int]]:
        own = cluster.processes()
        listeners = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        return {(each.pid, each.laddr.port) for each in listeners if each.pid in own and each.laddr}

    wait_for(lambda: listening() == expected)


def test_the_logs_of_agents_show_whom_a_forwarder_has_refused(cluster: Sandbox) -> None:
    place = state(cluster, "alpha", "forwarding.json")["forwarders"]["beta"]
    with socket.create_connection((place["address"], place["port"]), 60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_for(lambda: "does not speak TLS" in cluster("logs", "--agent", "beta").stdout)
    lines = cluster("logs", "--agent").stdout.splitlines()
    [refused] = [line for line in lines if "does not speak TLS" in line]
    assert re.fullmatch(r"forwarder on beta +\| refused 127\.0\.0\.\d+: it does not speak TLS", refused)


def test_keys_are_in_no_file_that_others_can_read(cluster: Sandbox) -> None:
    files = [path for path in cluster.folder.rglob("*") if path.is_file() and path.suffix != ".py"]
    holding = [path for path in files if b"PRIVATE KEY" in path.read_bytes()]
    assert sorted(path.suffix for path in holding) == [".certificate", ".certificate", ".pem"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}


def test_another_account_of_a_host_is_refused_everywhere(cluster: Sandbox) -> None:
    targets = targets_of(
        cluster
    )  # no addresses: other programs of this machine may listen; see the test of what listens
    assert {forwarder(cluster, host).pid for host in ("alpha", "beta")} <= set(targets["pids"])
    assert {"authority.pem", "forwarding.json"} <= {os.path.basename(path) for path in targets["paths"]}
    with account("tfc-x") as stranger:
        assert intrude(stranger, targets)["succeeded"] == []


def test_a_forwarder_outlives_its_agent_and_is_replaced_when_it_dies(cluster: Sandbox) -> None:
    before = forwarder(cluster, "beta")
    os.kill(state(cluster, "beta", "lock")["pid"], signal.SIGKILL)
    cluster.wait_until("running")
    assert forwarder(cluster, "beta") == before
    wait_for(lambda: both(cluster))
    os.kill(before.pid, signal.SIGKILL)
    wait_for(lambda: forwarder(cluster, "beta") != before)
    wait_for(lambda: both(cluster))
    events = cluster.json_lines("events")
    (restarted,) = [event for event in events if event["event"] == "forwarder-restarted"]
    assert restarted["host"] == "beta"
    assert "the forwarder died and is being restarted: see " in restarted["detail"]


def test_members_of_a_group_on_several_hosts_reach_each_other(cluster: Sandbox) -> None:
    script = cluster.folder / "code" / "member.py"
    script.parent.mkdir()
    script.parent.chmod(0o755)
    script.write_text(_MEMBER)
    output = cluster("launch", script).stdout
    assert {"worker:0 | heard hello", "worker:1 | heard hello"} <= set(output.splitlines())


def test_tasks_restart_and_a_further_host_joins_and_leaves(cluster: Sandbox) -> None:
    cluster("restart", "worker:1")
    wait_for(lambda: both(cluster))
    kept = {task["task"]: task["pid"] for task in cluster.status()["tasks"]}
    further = _SPEC.replace("}\njobs", ", gamma: {address: 127.0.0.4}}\njobs").replace(
        "{tasks: 2, hosts: [alpha, beta]}", "{tasks: 3, hosts: [alpha, beta, gamma]}"
    )
    cluster("up", cluster.spec(further, warm=True), "--yes")
    assert state(cluster, "gamma", "forwarding.json")["forwarders"].keys() == {"alpha", "beta", "gamma"}
    assert len(cluster.json_lines("run", "pi", "--samples", "1e3")[0]["devices"]) == 3
    cluster("up", cluster.spec(_SPEC, warm=True), "--yes")
    wait_for(lambda: both(cluster))
    assert cluster.status()["tasks"][0]["host"] == "beta"
    assert kept.keys() == {task["task"] for task in cluster.status()["tasks"]}
    assert state(cluster, "alpha", "forwarding.json")["forwarders"].keys() == {"alpha", "beta"}


def test_a_later_up_renews_certificates_that_are_not_known_here(cluster: Sandbox) -> None:
    before = [path.read_text() for path in sorted(cluster.folder.glob("run/tfcluster/*.certificate"))]
    assert cluster("up").stdout.startswith("two is up already")
    (cluster.folder / "state" / "tfcluster" / "two" / "authority.pem").unlink()
    output = cluster("up").stdout
    assert "host alpha gets a certificate" in output
    assert "host beta gets a certificate" in output
    after = [path.read_text() for path in sorted(cluster.folder.glob("run/tfcluster/*.certificate"))]
    assert not set(before) & set(after)
    wait_for(lambda: both(cluster))


def test_down_leaves_neither_keys_nor_forwarders(cluster: Sandbox) -> None:
    cluster("down")
    wait_for(lambda: not cluster.leftovers())
    assert not list(cluster.folder.rglob("*.pem"))
    cluster("up")
    wait_for(lambda: both(cluster))
