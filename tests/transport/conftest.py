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
def without_forwarding(hosts: SshHosts) -> Iterator[None]:
    """The sshd of h0 does not forward sockets."""
    hosts.kill("h0")
    hosts.start("h0", "AllowStreamLocalForwarding no")
    yield
    hosts.kill("h0")
    hosts.start("h0")


@pytest.fixture(params=["forwarded", "proxied"])
def both_ways(request: pytest.FixtureRequest) -> None:
    """Runs a test twice: the agent's socket is forwarded by ssh, or a session carries the bytes instead."""
    if request.param == "proxied":
        request.getfixturevalue("without_forwarding")


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
