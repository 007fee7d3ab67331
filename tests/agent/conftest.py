"""Two hosts of one cluster, ports, and journals that are closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.hosts import CLUSTER, Hosts, hosts_in
from tests.conftest import Sandbox, make_sandbox
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.state.journal import Journal
from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.os.network import bind_all_addresses
from tfcluster.transport.local import LocalTransport


@pytest.fixture
def port() -> int:
    """A port that is free, chosen by the kernel."""
    with bind_all_addresses(0) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def ports() -> Iterator[PortAllocator]:
    allocator = PortAllocator()
    yield allocator
    allocator.release_except(())


@pytest.fixture
def hosts(sandbox: Sandbox) -> Iterator[Hosts]:
    with hosts_in(sandbox) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def agents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Hosts whose agents have the module's TOPOLOGY up; its tests share them, and leave them ready."""
    with make_sandbox(tmp_path_factory.mktemp("agents")) as sandbox, hosts_in(sandbox) as hosts:
        hosts.up(request.module.TOPOLOGY)
        yield hosts


@pytest.fixture
def client(agents: Hosts) -> AgentClient:
    """What asks the agent of host a."""
    return AgentClient(LocalTransport(CLUSTER, "a"))


@pytest.fixture(autouse=True)
def close_journals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the journals that a test has opened, as the end of an agent would."""
    journals: list[Journal] = []
    open_journal = Journal.__init__

    def record(journal: Journal, *arguments: Any) -> None:
        open_journal(journal, *arguments)
        journals.append(journal)

    monkeypatch.setattr(Journal, "__init__", record)
    yield
    for journal in journals:
        journal.close()
