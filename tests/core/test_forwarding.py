"""The ports of a private cluster on several hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.hosts import task_of
from tfcluster import settings
from tfcluster.core.environment import client_address
from tfcluster.core.forwarding import Forwarding, forwarders_of, with_unique_ports
from tfcluster.core.hosts import Host
from tfcluster.core.topology import PRIVATE, ClusterTopology
from tfcluster.errors import ClusterError

HOSTS = (Host("a", "10.0.0.1", tls_port=4433), Host("b", "10.0.0.2", tls_port=4433))
TOPOLOGY = ClusterTopology("demo", "cluster.yaml", PRIVATE, (), hosts=HOSTS)


def test_every_task_has_a_port_of_its_own_and_every_host_ports_for_programs() -> None:
    tasks = (task_of("ps:0", "a"), task_of("worker:0", "b", port=2222), task_of("worker:1", "b"))
    chosen = with_unique_ports(replace(TOPOLOGY, tasks=tasks), None)
    assert [task.port for task in chosen.tasks] == [2223, 2222, 2224]
    ports = [set(host.program_ports) for host in chosen.hosts]
    assert [len(each) for each in ports] == [settings.PROGRAM_PORTS] * 2
    assert not ports[0] & ports[1]
    # What is chosen stays, and what a running cluster still uses is not chosen again.
    more = replace(chosen, tasks=(*chosen.tasks[1:], task_of("worker:2", "a")))
    assert with_unique_ports(more, chosen).tasks[-1].port == 2225
    assert with_unique_ports(chosen, chosen) == chosen
    forwarders = forwarders_of(chosen)
    assert set(forwarders["a"].ports) == {2223, *ports[0]}
    routes = Forwarding("a", forwarders, Path("x"), 0.0).routes()
    assert {routes[port] for port in routes} == {"b"}
    assert {2222, 2224, *ports[1]} == set(routes)


def test_a_client_has_an_address_that_the_other_hosts_reach() -> None:
    chosen = with_unique_ports(replace(TOPOLOGY, tasks=(task_of("ps:0", "a"), task_of("worker:0", "b"))), None)
    port = chosen.program_ports_on("b")[0]
    assert client_address(chosen, "b", port) == f"localhost:{port}"
    assert port in forwarders_of(chosen)["b"].ports
    assert client_address(replace(chosen, network="closed"), "b", 40000) == "10.0.0.2:40000"


def test_two_tasks_with_the_same_port_are_refused_and_one_host_needs_no_forwarders() -> None:
    tasks = (task_of("worker:0", "a", port=2222), task_of("worker:1", "b", port=2222))
    with pytest.raises(ClusterError, match="worker:0 on a and worker:1 on b both have port 2222"):
        with_unique_ports(replace(TOPOLOGY, tasks=tasks), None)
    assert forwarders_of(replace(TOPOLOGY, hosts=HOSTS[:1])) == {}
    assert forwarders_of(replace(TOPOLOGY, network="closed")) == {}
