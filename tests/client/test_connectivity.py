"""Which host tries to connect to which; and what is said of failed connections: by host and cause, not by pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.core.clusters import topology_of
from tfcluster.client.cluster import Cluster
from tfcluster.client.preflight.checks import AgentInspector, CheckResult, HostPreflight, Severity
from tfcluster.client.preflight.preflight import check_connectivity, choose_peers, firewall_rules
from tfcluster.core.topology import PRIVATE, ClusterTopology
from tfcluster.protocol.api.cluster import Allocation, Observation, Preparation
from tfcluster.transport.errors import HostUnreachableError

TOPOLOGY = topology_of(
    "name: demo\n"
    "hosts: {alpha: {address: 10.0.0.1}, beta: {address: 10.0.0.2}, gamma: {address: 10.0.0.3}}\n"
    "jobs:\n"
    "  ps: ['10.0.0.1:2222']\n"
    "  worker: ['10.0.0.2:2222', '10.0.0.3:2223']\n"
)


class FakeInspector(AgentInspector):
    """A host that says which addresses it cannot connect to; `find_failures` returns None if it cannot be asked."""

    def __init__(self, find_failures: Callable[[Sequence[str]], Mapping[str, str] | None]) -> None:
        self.addresses: list[str] = []
        self._find_failures = find_failures

    def observe(self) -> Observation:
        return Observation(None)

    def prepare(self, topology: ClusterTopology, *, listens: bool) -> Preparation:
        return Preparation(None, Allocation({}, {}), (), None)

    def failures(self, addresses: Sequence[str], timeout: float) -> Mapping[str, str]:
        self.addresses += addresses
        failures = self._find_failures(addresses)
        if failures is None:
            raise HostUnreachableError("gamma", "timed out")
        return failures

    def close(self) -> None:
        pass


def preflights(inspectors: Mapping[str, FakeInspector]) -> dict[str, HostPreflight]:
    return {host: HostPreflight(inspector=each, is_examined=True) for host, each in inspectors.items()}


def cluster_with(count: int, tasks: int = 1) -> ClusterTopology:
    """Return a cluster on hosts h0, h1, … at 10.0.0.100 and so on, each with some tasks from port 2222 on."""
    hosts = ", ".join(f"h{number}: {{address: 10.0.0.{100 + number}}}" for number in range(count))
    tasks_of_host = [f"'10.0.0.{100 + number}:{2222 + task}'" for number in range(count) for task in range(tasks)]
    return topology_of(f"name: demo\nhosts: {{{hosts}}}\njobs: {{worker: [{', '.join(tasks_of_host)}]}}\n")


def check(topology: ClusterTopology, why: Callable[[str, str], str]) -> list[CheckResult]:
    """Return the results, given a function that says why a host cannot connect to an address; empty if it can."""

    def inspector(source: str) -> FakeInspector:
        return FakeInspector(
            lambda addresses: {address: why(source, address) for address in addresses if why(source, address)}
        )

    hosts = preflights({host.name: inspector(host.name) for host in topology.hosts})
    return check_connectivity(Cluster("demo", topology.hosts, topology.hosts[0].name), topology, hosts)


def problems(results: Sequence[CheckResult]) -> list[str]:
    return [result.result for result in results if not result.is_ok]


@pytest.mark.parametrize("count", [2, 3, 15])
def test_up_to_fifteen_hosts_try_all_others(count: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    assert {host: sorted(peers) for host, peers in choose_peers(hosts).items()} == {
        host: sorted({*hosts} - {host}) for host in hosts
    }


@pytest.mark.parametrize("count", [16, 17, 48, 100, 1000])
def test_many_hosts_try_few_others_and_each_is_tried_by_as_many(count: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    chosen = choose_peers(hosts)
    number = (count - 1).bit_length()  # the logarithm of base 2, rounded up
    assert {host: len({*peers} - {host}) for host, peers in chosen.items()} == dict.fromkeys(hosts, number)
    assert Counter(peer for peers in chosen.values() for peer in peers) == dict.fromkeys(hosts, number)
    assert chosen == choose_peers(hosts)


def test_hosts_connect_to_the_tasks_of_all_others_and_failures_name_both_and_the_rule() -> None:
    failures = {"alpha": {}, "beta": {"10.0.0.3:2223": "timed out"}, "gamma": None}
    inspectors = {host: FakeInspector(lambda _, each=each: each) for host, each in failures.items()}  # type: ignore[misc]
    gamma, beta, alpha = check_connectivity(Cluster("demo", TOPOLOGY.hosts, "alpha"), TOPOLOGY, preflights(inspectors))
    assert {host: sorted(each.addresses) for host, each in inspectors.items()} == {
        "alpha": ["10.0.0.2:2222", "10.0.0.3:2223"],
        "beta": ["10.0.0.1:2222", "10.0.0.3:2223"],
        "gamma": ["10.0.0.1:2222", "10.0.0.2:2222"],
    }
    assert gamma.result == "host 'gamma' cannot be reached: timed out"
    assert (alpha.severity, alpha.result) == (Severity.OK, "reaches the tasks of 2 other hosts")
    assert beta.host == "gamma"
    assert beta.result == "host 'gamma' cannot be reached from beta at 10.0.0.3:2223 (worker:1): timed out"
    assert "`sudo iptables -I INPUT -p tcp -s 10.0.0.2 --dport 2223 -j ACCEPT`" in beta.hint


def test_a_host_behind_a_firewall_is_one_problem_however_many_hosts_and_tasks_there_are() -> None:
    topology = cluster_with(20, tasks=8)
    results = check(topology, lambda _, address: "timed out" if address.startswith("10.0.0.103:") else "")
    (problem,) = [result for result in results if not result.is_ok]
    assert (problem.host, problem.severity) == ("h3", Severity.ERROR)
    assert problem.result == (
        "host 'h3' cannot be reached from h1, h2, h7, h15 and 1 more at 10.0.0.103:2222 (worker:24), "
        "10.0.0.103:2223 (worker:25), 10.0.0.103:2224 (worker:26), 10.0.0.103:2225 (worker:27) and 4 more: timed out"
    )
    # The rule opens all its ports to all other hosts: those that did not try it will connect to it, too.
    others = ",".join(f"10.0.0.{100 + number}" for number in range(20) if number != 3)
    assert f"`sudo iptables -I INPUT -p tcp -s {others} --dport 2222:2229 -j ACCEPT`" in problem.hint
    reaching = [result for result in results if result.is_ok]
    assert {result.result for result in reaching} == {
        "reaches the tasks of the 5 other hosts that it tried, of 19",
    }
    assert len(reaching) == 20 - 5


def test_a_host_that_nothing_leaves_is_one_problem() -> None:
    results = check(cluster_with(20), lambda source, _: "No route to host" if source == "h3" else "")
    (problem,) = [result for result in results if not result.is_ok]
    assert problem.result == "host 'h3' reaches none of the hosts that it tried (5): No route to host"
    assert "`ip route get 10.0.0.104`" in problem.hint


def test_a_host_that_is_cut_off_is_a_problem_in_each_direction() -> None:
    def why(source: str, address: str) -> str:
        return "timed out" if source == "h1" or address == "10.0.0.101:2222" else ""

    assert problems(check(cluster_with(5), why)) == [
        "host 'h1' cannot be reached from h0, h2, h3, h4 at 10.0.0.101:2222 (worker:1): timed out",
        "host 'h1' reaches none of the hosts that it tried (4): timed out",
    ]


def test_a_host_that_is_cut_off_from_some_is_no_problem_of_theirs() -> None:
    lost = {"10.0.0.100:2222": "h0", "10.0.0.102:2222": "h2", "10.0.0.103:2222": "h3"}

    def why(source: str, address: str) -> str:
        is_lost = (source == "h1" and address in lost) or (source in lost.values() and address == "10.0.0.101:2222")
        return "timed out" if is_lost else ""

    assert problems(check(cluster_with(5), why)) == [
        "host 'h1' cannot be reached from h0, h2, h3 at 10.0.0.101:2222 (worker:1): timed out",
        "host 'h1' cannot reach h2, h3, h0: timed out",
    ]


def test_each_cause_is_a_problem_of_its_own() -> None:
    def why(source: str, address: str) -> str:
        if address != "10.0.0.101:2222":
            return ""
        return {"h0": "timed out", "h2": "timed out", "h3": "Connection refused"}.get(source, "")

    assert problems(check(cluster_with(5), why)) == [
        "host 'h1' cannot be reached from h0, h2 at 10.0.0.101:2222 (worker:1): timed out",
        "host 'h1' cannot be reached from h3 at 10.0.0.101:2222 (worker:1): Connection refused",
    ]


def test_if_every_host_has_a_firewall_each_is_a_problem() -> None:
    results = problems(check(cluster_with(48), lambda source, address: "timed out"))
    assert len(results) == 48
    assert results[0].startswith("host 'h1' cannot be reached from h0, h17, h33, h41 and 2 more at")


def test_of_a_private_cluster_every_host_has_a_rule_for_its_firewall() -> None:
    hosts = tuple(replace(host, tls_port=4433 + number) for number, host in enumerate(TOPOLOGY.hosts))
    _, beta, _ = firewall_rules(replace(TOPOLOGY, network=PRIVATE, hosts=hosts))
    assert (beta.host, beta.severity, beta.is_ok) == ("beta", Severity.NOTE, True)
    assert beta.result == "the other hosts connect to its port 4434 alone"
    assert "`sudo iptables -I INPUT -p tcp -s 10.0.0.1,10.0.0.3 --dport 4434 -j ACCEPT`" in beta.hint
    assert firewall_rules(replace(TOPOLOGY, hosts=hosts)) == []
    _, beta, _ = firewall_rules(
        replace(TOPOLOGY, network=PRIVATE, hosts=(replace(hosts[0], address="fd00::1"), *hosts[1:]))
    )
    assert "iptables -I INPUT -p tcp -s 10.0.0.3 --dport 4434 " in beta.hint
    assert "`sudo ip6tables -I INPUT -p tcp -s fd00::1 --dport 4434 -j ACCEPT`" in beta.hint


def test_a_single_host_is_not_checked_for_connectivity() -> None:
    inspector = FakeInspector(lambda _: {})
    cluster = Cluster("demo", TOPOLOGY.hosts, "alpha")
    assert check_connectivity(cluster, TOPOLOGY, preflights({"alpha": inspector})) == []
    assert inspector.addresses == []
