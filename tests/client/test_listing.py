"""The list of clusters, also of those that are not up or cannot be reached, and the exit code for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster.client import listing
from tfcluster.client.cluster import Cluster, record_spec, register
from tfcluster.client.listing import exit_code, list_clusters
from tfcluster.core.hosts import Host
from tfcluster.core.states import ClusterState, HostState, TaskState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import cluster_registry_path

HOST = Host("alpha", "alpha.example", connect="false")


@pytest.fixture
def outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What asking each cluster returns or raises; each is in the registry."""
    found: dict[str, Any] = {}

    def take_snapshot(cluster: Cluster, timeout: float | None, *, announces_lost: bool) -> Any:
        assert not announces_lost
        outcome = found[cluster.name]
        if isinstance(outcome, Exception):
            raise outcome
        away = ClusterError("beta cannot be reached", hint="Switch it on.", exit_code=ExitCode.UNREACHABLE)
        errors = {"beta": away} if outcome.state is ClusterState.DEGRADED and len(outcome.hosts) > 1 else {}
        return SimpleNamespace(status=outcome, topology=SimpleNamespace(has_servers=True), errors=errors)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(listing, "take_snapshot", take_snapshot)
    return found


def add(outcomes: dict[str, Any], name: str, outcome: Any) -> None:
    register(Cluster(name, (HOST,)))
    record_spec(name, f"/specs/{name}.yaml")
    outcomes[name] = outcome


def status(name: str, state: ClusterState, *tasks: TaskState) -> ClusterStatus:
    rows: Any = tuple(SimpleNamespace(state=each) for each in tasks)
    hosts = (HostStatus("alpha", HostState.UP, 1, "2"),)
    return ClusterStatus(name, state, f"{name}.yaml", hosts, rows, (), started=100.0)


def test_each_cluster_has_a_row_with_its_state_or_why_there_is_none(outcomes: dict[str, Any]) -> None:
    add(outcomes, "well", status("well", ClusterState.RUNNING, TaskState.READY, TaskState.READY))
    assert exit_code(list_clusters()) is ExitCode.DONE
    add(outcomes, "ill", status("ill", ClusterState.DEGRADED, TaskState.READY, TaskState.FAILED))
    assert exit_code(list_clusters()) is ExitCode.UNHEALTHY
    add(outcomes, "down", ClusterError("not running on any of its hosts", exit_code=ExitCode.NOT_RUNNING))
    assert exit_code(list_clusters()) is ExitCode.UNHEALTHY
    add(outcomes, "away", ClusterError("alpha cannot be reached", exit_code=ExitCode.UNREACHABLE))
    clusters = list_clusters()
    assert exit_code(clusters) is ExitCode.UNREACHABLE
    assert [(each.cluster, each.state, each.ready, each.tasks, each.started, each.error) for each in clusters] == [
        ("away", "unreachable", 0, 0, None, "alpha cannot be reached"),
        ("down", "stopped", 0, 0, None, "not running on any of its hosts"),
        ("ill", "degraded", 1, 2, 100.0, None),
        ("well", "running", 2, 2, 100.0, None),
    ]
    assert {each.hosts for each in clusters} == {("alpha",)}
    assert [each.spec for each in clusters] == [f"/specs/{each.cluster}.yaml" for each in clusters]


def test_a_cluster_with_a_lost_host_says_which_and_an_entry_that_cannot_be_read_hides_no_other(
    outcomes: dict[str, Any],
) -> None:
    add(outcomes, "partly", status("partly", ClusterState.DEGRADED, TaskState.READY, TaskState.UNRESPONSIVE))
    lost = HostStatus("beta", HostState.UNREACHABLE, None, None)
    outcomes["partly"] = replace(outcomes["partly"], hosts=(*outcomes["partly"].hosts, lost))
    (partly,) = list_clusters()
    assert (partly.state, partly.ready, partly.hosts) == ("degraded", 1, ("alpha", "beta"))
    assert (partly.error, partly.hint) == ("host 'beta': beta cannot be reached", "Switch it on.")
    assert exit_code([partly]) is ExitCode.UNREACHABLE
    add(outcomes, "broken", None)
    cluster_registry_path("broken").write_text("{")
    broken, partly_again = list_clusters()
    assert (broken.cluster, broken.state, broken.hosts) == ("broken", "unreachable", ())
    assert str(cluster_registry_path("broken")) in (broken.error or "")
    assert partly_again == partly


def test_no_cluster_is_an_empty_list(outcomes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "clusters_of_processes", lambda: iter(()))
    assert list_clusters() == []
    assert exit_code([]) is ExitCode.DONE
