"""The registry: the hosts of clusters, and the specs that they were started from; a spec that has another cluster."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tfcluster.client.cluster import Cluster, record_spec, recorded_spec, register, unregister
from tfcluster.client.resolve import resolve_cluster
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.paths import cluster_registry_path, running_clusters, state_folder


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


ALPHA = Host("alpha", "10.0.0.1", "tf@alpha", "python3", "/scratch", {"A": "b"}, ("true",))
BETA = Host("beta", "10.0.0.2", "beta")


def test_a_registered_cluster_has_its_hosts() -> None:
    register(Cluster("far", (ALPHA, BETA), "beta"))
    assert running_clusters() == ["far"]
    for cluster in (resolve_cluster(None), resolve_cluster("far")):
        assert list(cluster.hosts.values()) == [ALPHA, BETA]
        assert (cluster.name, cluster.head, cluster.is_local) == ("far", "beta", False)
    assert stat.S_IMODE(cluster_registry_path("far").stat().st_mode) == 0o600


def test_logs_remain_when_a_cluster_is_removed_from_the_registry() -> None:
    register(Cluster("far", (ALPHA,), "alpha"))
    unregister("far")
    unregister("far")
    assert not cluster_registry_path("far").parent.exists()
    state_folder("far").mkdir(parents=True)
    register(Cluster("far", (ALPHA,), "alpha"))
    register(Cluster("far"))  # on this machine only: it has no entry
    assert not cluster_registry_path("far").exists()
    register(Cluster("far", (ALPHA,), "alpha"))
    unregister("far")
    assert state_folder("far").exists()
    assert running_clusters() == []


@pytest.mark.parametrize("text", ["{", '{"format": 99, "tfcluster": "9.9.9"}'])
def test_an_entry_that_cannot_be_read_is_neither_replaced_nor_removed(text: str) -> None:
    cluster_registry_path("far").parent.mkdir(parents=True)
    cluster_registry_path("far").write_text(text)
    for cluster in (Cluster("far", (ALPHA,), "alpha"), Cluster("far"), None):
        with pytest.raises(ClusterError) as caught:
            unregister("far") if cluster is None else register(cluster)
        assert ("written by tfcluster 9.9.9, which is newer" in caught.value.message) == ("format" in text)
        assert cluster_registry_path("far").read_text() == text


def test_the_spec_that_a_cluster_was_started_from_is_recorded_until_it_is_removed() -> None:
    assert recorded_spec("near") is None
    record_spec("near", "/a/cluster.yaml")
    register(Cluster("near"))
    assert recorded_spec("near") == "/a/cluster.yaml"
    assert running_clusters() == [], "a record alone is no cluster"
    unregister("near")
    assert recorded_spec("near") is None
    assert not cluster_registry_path("near").parent.exists()
