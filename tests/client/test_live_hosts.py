"""The hosts of a cluster that is followed."""

from __future__ import annotations

from dataclasses import replace

from tests.agent.hosts import topology_of
from tfcluster.client.cluster import cluster_of
from tfcluster.client.live.hosts import LiveHosts
from tfcluster.core.status import TrafficTotals
from tfcluster.core.usage import HostUsage, ProcessUsage

IDLE = ProcessUsage(1.0, 1 << 20)


def test_a_host_that_has_left_while_it_was_away_is_forgotten() -> None:
    both = topology_of()
    one = replace(both, generation=both.generation + 1, hosts=both.hosts[:1], tasks=both.on("a"))
    hosts = LiveHosts(cluster_of(both), None)
    assert hosts.take_topology(both) == ([], [])
    hosts.lose("b", "it cannot be reached", is_remote=True)
    assert hosts.links()["b"].lost_at is not None
    assert hosts.take_topology(one) == ([], ["b"])
    hosts.lose("b", "it cannot be reached", is_remote=True)  # from a thread that has not ended yet
    assert list(hosts.links()) == ["a"]
    assert hosts.find_failure() is None
    hosts.note_down("a")
    assert hosts.find_failure() is not None


def test_a_task_without_a_process_has_no_rates() -> None:
    hosts = LiveHosts(cluster_of(topology_of()), None)
    for traffic in (100, 200):
        hosts.take_usage("a", HostUsage(IDLE, {"worker:0": replace(IDLE, traffic=TrafficTotals(traffic, traffic))}))
    assert (hosts.rates()["worker:0"].sent_per_s or 0) > 0
    hosts.take_usage("a", HostUsage(IDLE, {}))
    assert hosts.rates() == {}, "the last rates of a process are not those of none"


def test_a_topology_with_a_lower_number_is_that_of_the_next_cluster_if_no_host_has_a_status() -> None:
    first = topology_of()
    second = replace(first, generation=first.generation + 1)
    hosts = LiveHosts(cluster_of(first), None)
    hosts.take_topology(second)
    assert hosts.take_topology(replace(first, hosts=first.hosts[:1], tasks=first.on("a"))) == ([], []), "an older one"
    hosts.lose("b", "it cannot be reached", is_remote=True)
    hosts.note_down("a")
    assert hosts.take_topology(replace(first, hosts=first.hosts[:1], tasks=first.on("a"))) == ([], ["b"])
