"""Two hosts with an sshd each, and transports to them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import mostly_slow
from tests.hosts import SshHosts, ssh_hosts
from tfcluster.transport.remote_transport import RemoteTransport

TransportFactory = Callable[..., RemoteTransport]


@pytest.fixture(scope="module")
def hosts(needs_sshd: None, unchanged: None) -> Iterator[SshHosts]:
    """Hosts h0 and h1, shared by the tests of a module, which leave them reachable; this process's ssh knows them."""
    with ssh_hosts("h0", "h1") as ssh, pytest.MonkeyPatch.context() as patch:
        for name, value in ssh.environment.items():
            patch.setenv(name, value)
        yield ssh


@pytest.fixture
def without_forwarding(hosts: SshHosts) -> Iterator[None]:
    """The sshd of h0 does not forward sockets."""
    hosts.kill("h0")
    hosts.start("h0", "AllowStreamLocalForwarding no")
    yield
    hosts.kill("h0")
    hosts.start("h0")


@pytest.fixture(params=mostly_slow(["forwarded", "proxied"], fast=["forwarded"]))
def both_ways(request: pytest.FixtureRequest) -> None:
    """Runs a test twice: the agent's socket is forwarded by ssh, or a session carries the bytes instead."""
    if request.param == "proxied":
        request.getfixturevalue("without_forwarding")


@pytest.fixture
def make_transport(hosts: SshHosts) -> Iterator[TransportFactory]:
    """Make transports by a host's name and its other fields in the topology. Each test has a cluster of its own."""
    cluster = f"c{uuid.uuid4().hex[:8]}"
    transports: list[RemoteTransport] = []

    def make(name: str = "h0", **more: Any) -> RemoteTransport:
        transports.append(RemoteTransport(cluster, hosts.host(name, **more)))
        return transports[-1]

    yield make
    for transport in transports:
        transport.disconnect()
