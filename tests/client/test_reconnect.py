"""How a command and a view try to reach hosts again that they have lost, and which hosts get their leases renewed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import wait_for
from tests.project import Project
from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.resolve import find_cluster
from tfcluster.client.rpc.agent_client import AgentClient, AgentDisconnectedError
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs import launch
from tfcluster.client.runs.requests import RunResponse, keep_leases_alive, read_records
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import StatusRequest, TopologyRequest
from tfcluster.protocol.api.runs import EventRecord
from tfcluster.transport.errors import HostUnreachableError

_ATTEMPTS = 30


class RecordingContext(StreamContext):
    """Records the pauses and the messages instead of making them."""

    def __init__(self) -> None:
        super().__init__("alpha", self.messages_append)
        self.pauses: list[float] = []
        self.messages: list[str] = []

    def messages_append(self, text: str) -> None:
        self.messages.append(text)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_a_host_that_is_back_is_soon_tried_again_however_long_it_was_away() -> None:
    context = RecordingContext()
    client = cast(AgentClient, SimpleNamespace(transport=SimpleNamespace(is_remote=True)))
    reconnector: Reconnector[Any, Any] = Reconnector(client, context, RetryPolicy(1))

    def reach() -> str:
        if len(context.pauses) < _ATTEMPTS:
            raise HostUnreachableError("alpha", "no route to host")
        return "reached"

    assert reconnector.connect(reach) == "reached"
    assert max(context.pauses) <= 1.0  # an attempt of ssh itself repeats its packets for some seconds
    assert context.messages == [
        "host 'alpha' cannot be reached: no route to host, trying again",
        "alpha: connected again",
    ]


class BrokenResponse:
    """A response of an agent that dies after an event, before the response is complete."""

    timeout = 10.0

    def __init__(self, event: str) -> None:
        self._events: Iterator[str] = iter([event])

    def __next__(self) -> EventRecord:
        for event in self._events:
            return EventRecord({"event": event})
        raise AgentDisconnectedError("the agent died")

    def close_and_reap(self) -> None: ...


def test_the_result_of_a_run_arrives_once_if_the_agent_dies_right_after_it() -> None:
    client = cast(AgentClient, SimpleNamespace(transport=SimpleNamespace(is_remote=False)))
    responses = [BrokenResponse("started"), BrokenResponse("result"), BrokenResponse("result")]
    records = read_records(client, RecordingContext(), lambda: cast(RunResponse, responses.pop(0)))
    assert [record["event"] for record in records] == ["started", "result"]
    assert len(responses) == 1, "the command does not ask again for what it has"


class RefusingResponse(BrokenResponse):
    """The response of an agent that does not know the run."""

    def __next__(self) -> EventRecord:
        raise usage_error("no run 'pi-1234'", "")


def test_a_run_that_a_host_knows_no_more_is_lost_and_one_that_it_never_knew_is_not() -> None:
    client = cast(AgentClient, SimpleNamespace(transport=SimpleNamespace(is_remote=True, host="alpha")))

    def follow(*responses: BrokenResponse) -> ClusterError:
        left = list(responses)
        with pytest.raises(ClusterError) as caught:
            list(read_records(client, RecordingContext(), lambda: cast(RunResponse, left.pop(0))))
        return caught.value

    lost = follow(BrokenResponse("run"), RefusingResponse(""))
    assert lost.message == "host 'alpha' has come back without its state: the run is lost"
    assert lost.exit_code is ExitCode.FAILED
    assert follow(RefusingResponse("")).exit_code is ExitCode.USAGE


def with_lease(project: Project, lease: float | None) -> Cluster:
    """A cluster on three hosts, whose first answer with its topology gets lost."""
    project.bring_up("name: three\nhosts: [alpha, beta, gamma]\njobs: {worker: {tasks: 3}}\n")
    topology = replace(project.agent.up["three"], lease=lease)
    project.agent.answer(TopologyRequest, [ClusterError("it is busy")], [Reply(topology)])
    project.patch.setattr(settings, "LEASE_START_SECONDS", 0.01)
    return find_cluster("three")


def status_requests(project: Project) -> Counter[str]:
    """Return how often each host was asked for its status, which renews its lease."""
    return Counter(host for host, request in project.agent.requests if isinstance(request, StatusRequest))


@pytest.mark.parametrize("leader", ["alpha", "beta"])
def test_the_leases_of_all_hosts_but_the_one_that_leads_the_run_are_renewed(project: Project, leader: str) -> None:
    cluster, others = with_lease(project, 0.03), {"alpha", "beta", "gamma"} - {leader}
    with keep_leases_alive(cluster, {leader}):
        wait_for(lambda: min(status_requests(project)[host] for host in others) >= 3)
    assert status_requests(project).keys() == others
    assert len(project.agent.asked(TopologyRequest)) == 2


def test_without_a_lease_no_request_is_sent(project: Project) -> None:
    cluster, before = with_lease(project, None), threading.active_count()
    with keep_leases_alive(cluster, {"alpha"}):
        wait_for(lambda: len(project.agent.asked(TopologyRequest)) == 2 and threading.active_count() <= before)
    assert {type(request) for _, request in project.agent.requests} == {TopologyRequest}


@dataclass
class LostHost:
    """Stands for a host, its cluster and the code that is sent to it; it cannot be reached until `back` is set."""

    back: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    joined: list[str] = field(default_factory=list)  # the addresses
    threads: set[int] = field(default_factory=set)

    def connect(self, host: str) -> LostHost:
        self.threads.add(threading.get_ident())
        if not self.back.is_set():
            raise ClusterError("away")
        return self

    def send(self, *arguments: object) -> None:
        """Send the code."""

    def call(self, address: str) -> None:
        self.joined.append(address)
        self.answered.wait()


def test_a_host_that_is_lost_twice_is_joined_by_one_thread_with_the_latest_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = LostHost()
    monkeypatch.setattr(settings, "GROUP_REJOIN_SECONDS", 0.01)
    monkeypatch.setattr(launch, "_join_request", lambda submission, run, event: event["address"])
    submission: Any = SimpleNamespace(code_tree=host)
    cluster: Any = host
    lost = launch._LostHosts(submission, cluster)
    lost.rejoin("train-1", {"hosts": ["alpha"], "address": "first"})
    wait_for(lambda: host.threads)
    lost.rejoin("train-1", {"hosts": ["alpha"], "address": "second"})
    host.back.set()
    wait_for(lambda: host.joined)
    lost.rejoin("train-1", {"hosts": ["alpha"], "address": "third"})  # lost again while it is joined
    host.answered.set()
    wait_for(lambda: len(host.joined) == 2 and not lost._requests)
    lost.ended.set()
    assert host.joined == ["second", "third"]
    assert len(host.threads) == 1
