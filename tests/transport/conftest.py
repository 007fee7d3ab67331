"""Two hosts with an sshd each, and the way to them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.hosts import SshHosts, ssh_hosts
from tfcluster.transport.ssh import SshTransport

Reaching = Callable[..., SshTransport]


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Hosts h0 and h1, shared by the tests of a module, which leave them reachable; this process's ssh knows them."""
    with ssh_hosts("h0", "h1") as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture
def reach(hosts: SshHosts) -> Iterator[Reaching]:
    """Makes the way to a host: its name, and what else the host of the topology has. One cluster for each test."""
    cluster = f"c{uuid.uuid4().hex[:8]}"
    made: list[SshTransport] = []

    def way(name: str = "h0", **more: Any) -> SshTransport:
        made.append(SshTransport(cluster, hosts.host(name, **more)))
        return made[-1]

    yield way
    for there in made:
        there.disconnect()
