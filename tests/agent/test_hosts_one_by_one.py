"""Several hosts of one cluster, one after another: reserved ports, a change, shutdown; two agents on this machine."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from tests.agent.hosts import PI, TASKS, Hosts, shorts, task_of, topology_of
from tests.conftest import wait_for
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.api.cluster import DevicesRequest, ReachRequest, RestartRequest
from tfcluster.protocol.api.logs import EventsRequest


def can_connect(port: int) -> bool:
    with socket.socket() as dialling:
        return dialling.connect_ex(("127.0.0.1", port)) == 0


def allocated(prepared: Mapping[str, Any]) -> ClusterTopology:
    """The topology that was prepared, with the ports that b has allocated."""
    topology: ClusterTopology = prepared["b"]["topology"]
    return topology.with_allocation(prepared["b"]["allocation"]["ports"], {})


@pytest.mark.slow
def test_hosts_try_each_others_ports_before_a_server_listens(hosts: Hosts) -> None:
    prepared = hosts.prepare(topology_of())
    ports = {host: sorted(replies["allocation"]["ports"].values()) for host, replies in prepared.items()}
    addresses = [f"localhost:{port}" for port in ports["b"]]
    refused = hosts.ask("a", ReachRequest(tuple(addresses), 30.0))["failures"]
    assert refused == dict.fromkeys(addresses, "Connection refused"), "held, and no process listens"
    listening = hosts.hold("b", allocated(prepared), listens=True)
    next(listening)
    assert hosts.ask("a", ReachRequest(tuple(addresses), 30.0)) == {"failures": {}}
    with socket.socket() as caller:
        caller.connect(("127.0.0.1", ports["b"][0]))
        other = hosts.hold("b", allocated(prepared), listens=True)  # of another command at the same time
        next(other)
        other.close()
        listening.close()
        caller.settimeout(30)
        with pytest.raises(ConnectionResetError):
            caller.recv(1)  # nothing was ever served there
    wait_for(lambda: not can_connect(ports["b"][0]))
    with socket.socket(socket.AF_INET6) as binder, pytest.raises(OSError, match="in use"):
        binder.bind(("", ports["b"][0]))
    hosts.apply(topology_of(), prepared)
    assert sorted(hosts.topology.ports_on("b")) == ports["b"], "where servers listen now"


@pytest.mark.slow
def test_ports_stop_listening_however_the_request_ends(hosts: Hosts) -> None:
    prepared = hosts.prepare(topology_of())
    listening = hosts.hold("b", allocated(prepared), listens=True)
    next(listening)
    hosts.apply(topology_of(), prepared)  # while it goes on
    listening.close()
    listening = hosts.hold("b", hosts.topology, listens=True)
    next(listening)
    listening.close()
    assert all(can_connect(port) for port in hosts.topology.ports_on("b")), "the servers listen themselves"
    hosts.down("b")
    hosts.down("a")
    listening = hosts.hold("b", topology_of(), listens=True)
    port = min(next(listening).allocation.ports.values())
    assert can_connect(port)
    (pid,) = [pid for pid, title in hosts.sandbox.processes().items() if " agent on b" in title]
    agent = ProcessHandle.from_pid(pid)
    assert agent is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not agent.is_alive())
    assert not can_connect(port)
    listening.close()
    hosts.release()
    hosts.events("b")  # has the next agent tidy up


def test_problems_are_reported_together_and_no_port_is_reserved(hosts: Hosts) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        tasks = (task_of("worker:0", "a", port=port), task_of("worker:1", "b", address_host="192.0.2.7", gpus=100))
        replies = hosts.prepare(topology_of(tasks))
    (a,), (address, gpus) = replies["a"]["problems"], replies["b"]["problems"]
    assert a["error"]["message"].startswith(f"worker:0: port {port} is taken by ")
    assert address["error"]["message"].startswith("worker:1: 192.0.2.7 is not an address of b: ")
    assert gpus["error"]["message"].startswith("the tasks require 100 GPUs (worker:1 100), but b has ")
    assert replies["a"]["allocation"] == replies["b"]["allocation"] == {"ports": {}, "gpus": {}, "tls_port": None}
    hosts.release()
    wait_for(lambda: not hosts.sandbox.leftovers())


@pytest.mark.slow
def test_servers_are_restarted_for_a_new_address_on_another_host(hosts: Hosts) -> None:
    hosts.up(topology_of())
    before = {short: hosts.task(short)["pid"] for short in ("ps:0", "worker:0", "worker:1")}
    hosts.up(topology_of([*TASKS, task_of("worker:2", "b")]))
    after = {short: hosts.task(short)["pid"] for short in before}
    assert all(after[short] != before[short] for short in before), "each of them must know it"
    # And one that goes away is stopped where it is, and nothing else.
    hosts.up(topology_of())
    assert shorts(hosts.status("b")) == ["ps:0", "worker:1"]
    assert {short: hosts.task(short)["pid"] for short in before} == after


@pytest.mark.slow
def test_a_host_without_tasks_stays_up_until_down(hosts: Hosts) -> None:
    hosts.up(topology_of([task_of("worker:0", "a"), task_of("worker:1", "b")]))
    hosts.up(topology_of([task_of("worker:0", "a")]))
    assert hosts.status("b")["tasks"] == []
    assert hosts.ask("b", DevicesRequest()) == {"devices": [], "silent": []}
    hosts.ask("b", RestartRequest((), 1.0))
    hosts.kill_agent("b")
    assert hosts.status("b")["tasks"] == []
    hosts.down("b")
    assert shorts(hosts.status("a")) == ["worker:0"]


@pytest.mark.slow
def test_hosts_go_down_one_by_one(hosts: Hosts) -> None:
    hosts.up(topology_of())
    address = hosts.task("worker:1")["address"]
    hosts.down("b")
    wait_for(lambda: not (hosts.state_folder("b") / "lock").exists())  # its agent may accept a last connection
    with pytest.raises(ClusterError) as caught:
        hosts.status("b")
    assert caught.value.exit_code is ExitCode.NOT_RUNNING
    assert shorts(hosts.status("a")) == ["worker:0"]
    with pytest.raises(ClusterError) as caught:
        next(hosts.run("pi", PI, strict=True))
    assert f"worker:1 at {address} on b does not answer" in caught.value.message
    assert caught.value.exit_code is ExitCode.UNHEALTHY
    with pytest.raises(ClusterError, match=r"ps:0 at .* on b does not answer"):
        next(hosts.run("linear", {}))
    result = hosts.result(hosts.run("pi", PI))
    assert {device.partition("/device")[0] for device in result["devices"]} == {"/job:worker/task:0"}
    assert f"worker:1 at {address} on b does not answer: running without them" in result["notes"][0]
    hosts.down("a")
    wait_for(lambda: not hosts.sandbox.leftovers())


@pytest.mark.slow
def test_a_host_whose_lease_expires_goes_down(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_often = hosts.sandbox.with_settings({"HEALTH_INTERVAL_SECONDS": 0.2})
    monkeypatch.setenv("TEST_SETTINGS", checks_often["TEST_SETTINGS"])
    hosts.up(topology_of())
    a, b = (hosts.stream(host, EventsRequest(None, None, follow=True, after={})) for host in "ab")
    next(a), next(b)
    hosts.up(topology_of(lease=0.5))  # while both are followed, however long it takes
    b.close()
    folder = hosts.state_folder("b")
    # Not asked, which would be a contact.
    wait_for(lambda: not (folder / "journal.json").exists() and not (folder / "lock").exists(), 60)
    assert (hosts.state_folder("a") / "journal.json").exists(), "a client follows its events"
    a.close()
    wait_for(lambda: not hosts.sandbox.leftovers(), 60)
    events = [(each["event"], each["detail"]) for each in hosts.events("b")]
    assert events[-1] == ("down", "")
    why = "no command for 0.5 s, the cluster's lease: its tasks on this host are being stopped"
    assert ("lease-expired", why) in events
    wait_for(lambda: not hosts.sandbox.leftovers())
