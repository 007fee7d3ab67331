"""Which hosts the snapshot of a cluster takes the topology from."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.agent.hosts import topology_of
from tfcluster.client.cluster import Cluster
from tfcluster.client.status import NoStatusError, take_snapshot
from tfcluster.core.states import ClusterState, HostState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.errors import ExitCode
from tfcluster.protocol.api import Request
from tfcluster.protocol.api.cluster import StatusReply, TopologyRequest
from tfcluster.transport.errors import HostUnreachableError, not_running


class Hosts:
    """A cluster whose hosts have the given generations of its topology; None is a host that cannot be reached."""

    name, provider, is_local = "demo", None, False

    def __init__(self, generations: dict[str, int | None], ending: str = "") -> None:
        self.hosts = generations
        self._ending = ending  # the hosts whose agent ends after it has sent its status
        self.topology_requests: Counter[str] = Counter()

    def require_hosts(self) -> None: ...

    def connect(self, host: str) -> Any:
        return SimpleNamespace(
            stream=lambda request, timeout: self._response(host, request),
            call=lambda request: self._answer(host, request),
        )

    def _response(self, host: str, request: Request[Any, Any]) -> Any:
        answer = self._answer(host, request)
        return SimpleNamespace(close=lambda: None, result=lambda: answer)

    def _answer(self, host: str, request: Request[Any, Any]) -> Any:
        generation = self.hosts[host]
        if generation is None:
            raise HostUnreachableError(host, "no route to host")
        if isinstance(request, TopologyRequest):
            self.topology_requests[host] += 1
            if host in self._ending:
                raise not_running("demo")
            return topology_of(generation=generation)
        status = ClusterStatus("demo", ClusterState.RUNNING, "", (HostStatus(host, HostState.UP, 1, "2"),), (), ())
        return StatusReply(status, generation)


@pytest.mark.parametrize(
    ("generations", "latest", "asked"),
    [
        ({"a": 3, "b": 3, "c": 3}, 3, {"a": 1}),  # one host, whatever their number
        ({"a": 3, "b": 2, "c": 3}, 3, {"a": 1}),
        ({"a": 2, "b": 3, "c": 2}, 3, {"a": 1, "b": 1}),
        ({"a": None, "b": 3, "c": 3}, 3, {"b": 1, "c": 1}),
        ({"a": None, **dict.fromkeys("bcdef", 3)}, 3, {"b": 1, "c": 1, "d": 1}),
    ],
)
def test_the_topology_is_the_latest_that_a_host_has(
    generations: dict[str, int | None], latest: int, asked: dict[str, int]
) -> None:
    hosts = Hosts(generations)
    snapshot = take_snapshot(cast(Cluster, hosts))
    assert snapshot.topology.generation == latest
    assert hosts.topology_requests == asked
    assert set(snapshot.statuses) == {host for host, generation in generations.items() if generation is not None}


def test_a_host_that_goes_away_meanwhile_is_not_the_end_of_the_cluster() -> None:
    unreachable: dict[str, int | None] = {"a": None, "b": 3, "c": 3}
    snapshot = take_snapshot(cast(Cluster, Hosts(unreachable, ending="b")))
    assert snapshot.topology.generation == 3
    assert set(snapshot.statuses) == {"b", "c"}
    assert take_snapshot(cast(Cluster, Hosts({"a": 2, "b": 3}, ending="b"))).topology.generation == 2
    with pytest.raises(NoStatusError) as caught:
        take_snapshot(cast(Cluster, Hosts(unreachable, ending="bc")))
    assert caught.value.exit_code is ExitCode.UNREACHABLE
