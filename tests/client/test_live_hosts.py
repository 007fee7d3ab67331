"""The hosts of a cluster that is followed."""

from __future__ import annotations

from dataclasses import replace

from tests.agent.hosts import topology_of
from tfcluster.client.cluster import cluster_of
from tfcluster.client.live.hosts import LiveHosts


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


def test_a_topology_with_a_lower_number_is_that_of_the_next_cluster_if_no_host_has_a_status() -> None:
    first = topology_of()
    second = replace(first, generation=first.generation + 1)
    hosts = LiveHosts(cluster_of(first), None)
    hosts.take_topology(second)
    assert hosts.take_topology(replace(first, hosts=first.hosts[:1], tasks=first.on("a"))) == ([], []), "an older one"
    hosts.lose("b", "it cannot be reached", is_remote=True)
    hosts.note_down("a")
    assert hosts.take_topology(replace(first, hosts=first.hosts[:1], tasks=first.on("a"))) == ([], ["b"])
