"""Which hosts get their leases renewed while a run is followed, with a fake cluster."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.runs.runs import keep_leases_alive
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Request
from tfcluster.protocol.api.cluster import StatusRequest, TopologyRequest


class FakeCluster:
    """A cluster with the head alpha, which cannot be reached at first."""

    hosts = ("alpha", "beta", "gamma")
    head = "alpha"

    def __init__(self, lease: float | None) -> None:
        self.requests: Counter[tuple[str, type[Request[Any, Any]]]] = Counter()
        self._lease = lease

    def connect(self, host: str) -> FakeClient:
        return FakeClient(self, host)

    def connect_head(self) -> FakeClient:
        return self.connect(self.head)

    def answer(self, host: str, kind: type[Request[Any, Any]]) -> Any:
        self.requests[host, kind] += 1
        if kind is TopologyRequest and self.requests[host, kind] == 1:
            raise ClusterError("unreachable")
        return SimpleNamespace(lease=self._lease)


class FakeClient:
    def __init__(self, cluster: FakeCluster, host: str) -> None:
        self._cluster = cluster
        self._host = host

    def call(self, request: Request[Any, Any]) -> Any:
        return self._cluster.answer(self._host, type(request))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "LEASE_START_SECONDS", 0.01)


def threads() -> int:
    return threading.active_count()


def test_the_leases_of_all_hosts_but_the_head_are_renewed() -> None:
    cluster, before = FakeCluster(0.03), threads()
    with keep_leases_alive(cast(Cluster, cluster), {cluster.head}):
        wait_for(lambda: min(cluster.requests[host, StatusRequest] for host in ("beta", "gamma")) >= 3)
    wait_for(lambda: threads() <= before)
    assert ("alpha", StatusRequest) not in cluster.requests
    assert cluster.requests["alpha", TopologyRequest] == 2


def test_the_lease_of_the_head_is_renewed_if_other_hosts_lead_the_runs() -> None:
    cluster, before = FakeCluster(0.03), threads()
    with keep_leases_alive(cast(Cluster, cluster), {"beta"}):
        wait_for(lambda: min(cluster.requests[host, StatusRequest] for host in ("alpha", "gamma")) >= 3)
    wait_for(lambda: threads() <= before)
    assert ("beta", StatusRequest) not in cluster.requests


def test_without_a_lease_no_request_is_sent() -> None:
    cluster, before = FakeCluster(None), threads()
    with keep_leases_alive(cast(Cluster, cluster), {cluster.head}):
        wait_for(lambda: cluster.requests["alpha", TopologyRequest] == 2 and threads() <= before)
    assert set(cluster.requests) == {("alpha", TopologyRequest)}
