"""Which run a name means on a cluster of several hosts."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster.client.cluster import Cluster
from tfcluster.client.runs.leader import locate_run
from tfcluster.client.tensorboard import find_folders
from tfcluster.errors import ClusterError, ExitCode


class Hosts:
    """A cluster whose hosts list these runs; a host without a list cannot be reached."""

    def __init__(self, runs: Mapping[str, list[str] | None], head: str = "alpha") -> None:
        self._runs = runs
        self.head = head
        self.hosts = list(runs)
        self.asked: list[str] = []

    def led_by(self, host: str) -> Hosts:
        return Hosts(self._runs, host)

    def connect(self, host: str) -> Any:
        def call(request: object, **options: object) -> Any:
            self.asked.append(host)
            names = self._runs[host]
            if names is None:
                raise ClusterError(f"host {host!r} cannot be reached", exit_code=ExitCode.UNREACHABLE)
            runs = [SimpleNamespace(run=name, parameters={"logdir": f"/{host}"}) for name in names]
            return SimpleNamespace(runs=runs, state="/state")

        return SimpleNamespace(call=call, transport=SimpleNamespace(has_state=lambda: True))

    def connect_head(self) -> Any:
        return self.connect(self.head)


def locate(hosts: Hosts, name: str) -> tuple[str, str]:
    leader, identity = locate_run(cast(Cluster, hosts), name, start=True)
    return leader.head, identity


def test_a_name_is_not_taken_for_the_beginning_of_another_hosts_run() -> None:
    hosts = Hosts({"alpha": ["baseline-1a2b"], "beta": ["base-3f9a"]})
    assert locate(hosts, "base") == ("beta", "base-3f9a")
    assert locate(hosts, "baseline") == ("alpha", "baseline-1a2b")
    assert locate(hosts, "base-") == ("beta", "base-3f9a")
    assert locate(hosts, "unknown") == ("alpha", "unknown")
    with pytest.raises(ClusterError, match="several runs begin with 'bas': base-3f9a, baseline-1a2b"):
        locate(hosts, "bas")


def test_an_id_of_the_heads_is_asked_of_no_other_host() -> None:
    hosts = Hosts({"alpha": ["pi-1a2b"], "beta": None})
    assert locate(hosts, "pi-1a2b") == ("alpha", "pi-1a2b")
    assert hosts.asked == ["alpha"]


def test_a_run_is_found_while_the_head_is_away() -> None:
    hosts = Hosts({"alpha": None, "beta": ["pi-1a2b"]})
    assert locate(hosts, "pi") == ("beta", "pi-1a2b")
    with pytest.raises(ClusterError, match="cannot be reached, and no other host has a run 'mean'"):
        locate(hosts, "mean")


def test_tensorboard_finds_a_run_by_its_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SimpleNamespace(state="/state")
    monkeypatch.setattr("tfcluster.client.tensorboard.request_environment", lambda cluster, target: environment)
    cluster = cast(Cluster, Hosts({"alpha": ["baseline-1a2b", "base-3f9a"]}))
    (found,) = find_folders(cluster, "base")
    assert found.name == "base-3f9a"
    with pytest.raises(ClusterError, match="there is no folder and no run 'mean'"):
        find_folders(cluster, "mean")
