"""The address book, and what commands make of it when they choose their cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster.client import registry
from tfcluster.client.cluster import Cluster
from tfcluster.client.resolve import cluster_of, resolve_cluster
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.paths import cluster_registry_path, running_clusters, state_folder

ALPHA = Host("alpha", "10.0.0.1", "tf@alpha", "python3", "/scratch", {"A": "b"}, ("true",))
BETA = Host("beta", "10.0.0.2", "beta")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_a_cluster_is_found_where_it_was_noted_to_be() -> None:
    registry.write(Cluster("far", (ALPHA, BETA), "beta"))
    assert running_clusters() == ["far"]
    for found in (resolve_cluster(None), resolve_cluster("far")):
        assert list(found.hosts.values()) == [ALPHA, BETA]
        assert (found.name, found.head, found.is_here) == ("far", "beta", False)


def test_what_is_not_noted_is_on_this_machine() -> None:
    found = cluster_of("near")
    assert list(found.hosts) == ["localhost"]
    assert found.is_here


def test_the_spec_here_says_where_its_own_cluster_is_until_that_is_noted() -> None:
    Path("cluster.yaml").write_text("name: far\nhosts: [alpha, beta]\njobs:\n  worker: {tasks: 2}\n")
    for found in (resolve_cluster(None), resolve_cluster("far")):
        assert (list(found.hosts), found.head) == (["alpha", "beta"], "alpha")
    assert list(cluster_of("another").hosts) == ["localhost"]
    registry.write(Cluster("far", (BETA,), "beta"))
    assert list(cluster_of("far").hosts) == ["beta"]
    assert list(resolve_cluster(None).hosts) == ["beta"]


def test_a_spec_that_nobody_asked_for_may_be_broken() -> None:
    Path("cluster.yaml").write_text("jobs: [")
    assert cluster_of("near").is_here


def test_a_cluster_that_is_forgotten_leaves_its_logs() -> None:
    registry.write(Cluster("far", (ALPHA,), "alpha"))
    registry.remove("far")
    registry.remove("far")
    assert not cluster_registry_path("far").parent.exists()
    state_folder("far").mkdir(parents=True)
    registry.write(Cluster("far", (ALPHA,), "alpha"))
    registry.remove("far")
    assert state_folder("far").exists()
    assert running_clusters() == []


@pytest.mark.parametrize("text", ["", "{}", "[]", 100_000 * "[", '{"hosts": [{}], "head": "a"}'])
def test_a_damaged_book_is_named(text: str) -> None:
    cluster_registry_path("far").parent.mkdir(parents=True)
    cluster_registry_path("far").write_text(text)
    with pytest.raises(ClusterError, match="cannot read the hosts of cluster 'far'") as caught:
        cluster_of("far")
    assert str(cluster_registry_path("far")) in caught.value.message
