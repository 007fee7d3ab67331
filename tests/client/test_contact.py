"""Which hosts are asked while a run is followed: a pretended cluster."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, cast

import pytest

from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.lease import keep_leases_alive
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Method


class Pretended:
    """A cluster with the head alpha, which cannot be reached at first."""

    is_here = False
    hosts = ("alpha", "beta", "gamma")
    head = "alpha"

    def __init__(self, lease: float | None) -> None:
        self.asked: Counter[tuple[str, Method]] = Counter()
        self._lease = lease

    def connect(self, host: str) -> Asked:
        return Asked(self, host)

    def leader(self) -> Asked:
        return self.connect(self.head)

    def answer(self, host: str, call: Method) -> Any:
        self.asked[host, call] += 1
        if call is Method.TOPOLOGY and self.asked[host, call] == 1:
            raise ClusterError("away")
        return {"lease": self._lease}


class Asked:
    def __init__(self, cluster: Pretended, host: str) -> None:
        self._cluster = cluster
        self._host = host

    def call(self, call: Method, **arguments: Any) -> Any:
        return self._cluster.answer(self._host, call)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "LEASE_START_SECONDS", 0.01)


def threads() -> int:
    return threading.active_count()


def test_every_host_but_the_head_is_asked_again_and_again() -> None:
    cluster, before = Pretended(0.03), threads()
    with keep_leases_alive(cast(Cluster, cluster)):
        wait_for(lambda: min(cluster.asked[host, Method.STATUS] for host in ("beta", "gamma")) >= 3)
    wait_for(lambda: threads() <= before)
    assert ("alpha", Method.STATUS) not in cluster.asked
    assert cluster.asked["alpha", Method.TOPOLOGY] == 2


def test_without_a_lease_nobody_is_asked() -> None:
    cluster, before = Pretended(None), threads()
    with keep_leases_alive(cast(Cluster, cluster)):
        wait_for(lambda: cluster.asked["alpha", Method.TOPOLOGY] == 2 and threads() <= before)
    assert set(cluster.asked) == {("alpha", Method.TOPOLOGY)}
