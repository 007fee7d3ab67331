"""When an agent that has nothing to do exits, and when the lease of a cluster expires."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.agent.hosts import CLUSTER, Hosts
from tests.conftest import wait_for
from tfcluster.agent.context import Lease
from tfcluster.agent.rpc_server import Dispatcher, RpcServer
from tfcluster.transport.channel import readable_fds
from tfcluster.transport.local import _greet, connect, start_agent


async def test_a_later_exit_replaces_one_that_was_scheduled_before() -> None:
    agent: Any = SimpleNamespace(is_idle=True, quitting=asyncio.Event())
    server = RpcServer(agent, cast(Dispatcher, None))
    server._schedule_idle_exit(0.0)
    server._schedule_idle_exit(3600.0)  # `up` has run the preflight, and sends another request
    for _ in range(10):
        await asyncio.sleep(0)
    assert not agent.quitting.is_set()
    server._schedule_idle_exit(0.0)
    await asyncio.wait_for(agent.quitting.wait(), 30)


def test_an_agent_without_a_cluster_exits_if_no_command_connects_or_one_has_asked_nothing(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an `up` that was killed as soon as it had started the agent."""
    variables = hosts.sandbox.with_settings({"AGENT_FIRST_REQUEST_SECONDS": 0.1})
    monkeypatch.setenv("TEST_SETTINGS", variables["TEST_SETTINGS"])
    assert start_agent(CLUSTER, "a") is None
    wait_for(lambda: not hosts.sandbox.leftovers())
    connection = None
    while connection is None:  # the first agents may exit before this has connected
        start_agent(CLUSTER, "a")
        connection = connect(CLUSTER, "a")
        if connection is not None and _greet(connection) is None:  # it was just about to exit
            connection.close()
            connection = None
    pidfd = os.pidfd_open(connection.pid)
    assert not readable_fds([pidfd], 0.5)  # longer than the agent waits for a connection
    connection.close()
    assert readable_fds([pidfd], 30)
    os.close(pidfd)
    wait_for(lambda: not hosts.sandbox.leftovers())


class FakeClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_expires_when_no_command_was_in_contact() -> None:
    clock = FakeClock()
    lease = Lease(clock)
    clock.now += 59.9
    assert not lease.has_expired(60.0)
    clock.now += 0.1
    assert lease.has_expired(60.0)
    assert not lease.has_expired(61.0)
    assert not lease.has_expired(None), "without a lease it never expires"


def test_the_lease_does_not_expire_while_a_request_is_in_progress() -> None:
    clock = FakeClock()
    lease = Lease(clock)
    with lease.renew():
        with lease.renew():
            clock.now += 500.0
        assert not lease.has_expired(60.0)
        clock.now += 500.0
        assert not lease.has_expired(60.0)
    assert not lease.has_expired(60.0), "it counts from the end of the request"
    clock.now += 60.0
    assert lease.has_expired(60.0)
