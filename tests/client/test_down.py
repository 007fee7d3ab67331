"""In which order `down` stops hosts, and what it says of those that it cannot reach."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.core.clusters import topology_of
from tfcluster.client import down
from tfcluster.client.cluster import Cluster, read_registry, register
from tfcluster.client.status import ClusterSnapshot
from tfcluster.core.states import HostState
from tfcluster.core.status import aggregate_status
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport.errors import HostUnreachableError

TOPOLOGY = topology_of(
    "name: wide\nhosts: {alpha: , beta: , gamma: }\n"
    "jobs: {ps: {tasks: 1, hosts: [alpha]}, worker: {tasks: 2, hosts: [beta, gamma]}}"
)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The hosts that `down` stops, those at the same time together; each is stopped at once."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    groups: list[set[str]] = []

    def stop_hosts(cluster: Cluster, hosts: Collection[str], grace: float) -> Iterator[Any]:
        if hosts:
            groups.append({*hosts})
        return iter(())

    monkeypatch.setattr(down, "stop_hosts", stop_hosts)
    return groups


def take_down(monkeypatch: pytest.MonkeyPatch, *away: str, provider: Any = None) -> None:
    """Take down the cluster while some of its hosts cannot be reached."""
    cluster = Cluster("wide", TOPOLOGY.hosts, "beta", provider)
    register(cluster)
    errors: dict[str, ClusterError] = {host: HostUnreachableError(host, "No route to host") for host in away}
    status = aggregate_status(TOPOLOGY, {host.name: HostState.DOWN for host in TOPOLOGY.hosts})
    statuses = {host.name: status for host in TOPOLOGY.hosts if host.name not in away}
    snapshot = ClusterSnapshot(TOPOLOGY, status, errors, statuses)
    monkeypatch.setattr(down, "take_snapshot", lambda *arguments: snapshot)
    down.take_down(cluster, 1.0, None, lambda status: None)


def test_hosts_with_a_ps_are_stopped_last(stopped: list[set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    take_down(monkeypatch)
    assert stopped == [{"beta", "gamma"}, {"alpha"}]
    assert read_registry("wide") is None


def test_if_a_provider_cannot_forget_the_tasks_none_is_stopped(
    stopped: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget() -> None:
        raise ClusterError("kubectl has not answered", hint="Try it later.", exit_code=ExitCode.UNREACHABLE)

    provider = Mock(forget_topology=forget, facts={"cluster": "wide", "context": "here", "namespace": "ml"})
    provider.name = "kubernetes"
    with pytest.raises(ClusterError, match=r"^nothing was stopped: kubectl has not answered"):
        take_down(monkeypatch, provider=provider)
    assert stopped == []
    provider.release.assert_not_called()


def test_the_others_are_stopped_and_what_may_run_on_a_host_that_is_away_is_named(
    stopped: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError) as caught:
        take_down(monkeypatch, "gamma")
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "these tasks may still be running there: worker:1 on gamma; the rest of 'wide'" in caught.value.message
    assert "`tfcluster down -c wide` completes it" in caught.value.hint
    assert stopped == [{"beta"}, {"alpha"}]
    remaining = read_registry("wide")
    assert remaining is not None
    assert [*remaining.hosts] == ["gamma"]
