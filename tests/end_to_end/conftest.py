"""The clusters that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import Cluster, Hosts
from tests.conftest import Sandbox
from tests.end_to_end.sites import InSlurm, Pods, in_pods, in_slurm
from tests.hosts import HostsSandbox
from tests.namespaces import Network

#: The constant in which a module describes the cluster of a fixture.
_CONSTANTS = {"cluster": "CLUSTER", "hosts": "HOSTS"}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with the cluster up that the module's CLUSTER describes; its tests share it, and leave it ready."""
    described: Cluster = request.module.CLUSTER
    with described.up(tmp_path_factory.mktemp("cluster")) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsSandbox]:
    """A sandbox with the cluster up that the module's HOSTS describes; its tests share it, and leave it ready."""
    described: Hosts = request.module.HOSTS
    with described.up(tmp_path_factory.mktemp("hosts")) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def machines(hosts: HostsSandbox) -> Network:
    """The machines that the module's HOSTS describes."""
    return hosts.network.network


@pytest.fixture(scope="module")
def site(needs_slurm: None) -> Iterator[InSlurm]:
    """A sandbox whose commands run where jobs are submitted to a real Slurm."""
    with in_slurm() as sandbox:
        yield sandbox


@pytest.fixture
def pods(needs_network: None, tmp_path: Path) -> Iterator[Pods]:
    """A played Kubernetes, and a sandbox whose commands find its kubectl."""
    with in_pods(tmp_path) as pods:
        yield pods


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with what the cluster that its module describes needs of the machine."""
    if isinstance(item, pytest.Function):
        for fixture in _CONSTANTS.keys() & {*item.fixturenames}:
            item.add_marker(pytest.mark.needs(*getattr(item.module, _CONSTANTS[fixture]).needs))
