"""How a command and a view try to reach hosts again that they have lost, and which hosts get their leases renewed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import wait_for
from tests.fake_agent import WAIT
from tests.project import Project
from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.resolve import find_cluster
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs.launch import launch, make_group
from tfcluster.client.runs.requests import attach, keep_leases_alive
from tfcluster.client.runs.submission import RunSubmission
from tfcluster.core.runs import RunOptions
from tfcluster.core.states import RunState
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.protocol.api import Done, Reply
from tfcluster.protocol.api.cluster import StatusRequest, TopologyRequest
from tfcluster.protocol.api.files import SendCodeRequest
from tfcluster.protocol.api.runs import AttachRequest, EventRecord, JoinRequest, RunRequest, RunSummary

SPEC = "name: three\nhosts: [alpha, beta, gamma]\njobs: {worker: {tasks: 3}}\n"
STARTED, RESULT = EventRecord({"event": "started"}), EventRecord({"event": "result"})
UNKNOWN = usage_error("no run 'pi-1'", "")


class RecordingContext(StreamContext):
    """Records the pauses and the messages instead of making them; the hosts are back after `attempts` pauses."""

    def __init__(self, project: Project, attempts: int) -> None:
        super().__init__("alpha", self.messages_append)
        self.pauses: list[float] = []
        self.messages: list[str] = []
        self._project = project
        self._attempts = attempts

    def messages_append(self, text: str) -> None:
        self.messages.append(text)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self._attempts:
            self._project.agent.away.clear()


def test_a_host_that_is_back_is_soon_tried_again_however_long_it_was_away(project: Project) -> None:
    project.bring_up(SPEC)
    project.agent.away = {"alpha"}
    context = RecordingContext(project, 30)
    client = find_cluster("three").connect("alpha")
    reconnector: Reconnector[Any, Any] = Reconnector(client, context, RetryPolicy(1))
    assert reconnector.connect(lambda: client.call(TopologyRequest())) == project.agent.up["three"]
    assert len(context.pauses) == 30
    assert max(context.pauses) <= 1.0  # an attempt of ssh itself repeats its packets for some seconds
    assert context.messages == [
        "host 'alpha' cannot be reached: no route to host, trying again",
        "alpha: connected again",
    ]


def with_run(project: Project, text: str) -> Cluster:
    """A cluster that has the run pi-1."""
    name = project.bring_up(text).cluster
    project.agent.runs = [RunSummary("pi-1", "pi", {}, RunState.RUNNING, 1.0, 1.0, None, None, None, None)]
    project.patch.setattr(settings, "RECONNECT_INITIAL_SECONDS", 0.01)
    return find_cluster(name)


def test_the_result_of_a_run_arrives_once_if_the_agent_dies_right_after_it(project: Project) -> None:
    cluster = with_run(project, "name: one\njobs: {worker: {tasks: 1}}\n")
    project.agent.answer(AttachRequest, [STARTED], [RESULT], [UNKNOWN])  # no response is complete
    assert list(attach(cluster, "pi-1")) == [STARTED.record, RESULT.record]
    assert len(project.agent.asked(AttachRequest)) == 2, "the command does not ask again for what it has"


@pytest.mark.parametrize(
    ("answers", "message", "code"),
    [
        ([[STARTED], [UNKNOWN]], "host 'alpha' has come back without its state: the run is lost", ExitCode.FAILED),
        ([[UNKNOWN]], "no run 'pi-1'", ExitCode.USAGE),
    ],
)
def test_a_run_that_a_host_knows_no_more_is_lost_and_one_that_it_never_knew_is_not(
    project: Project, answers: list[list[object]], message: str, code: ExitCode
) -> None:
    cluster = with_run(project, SPEC)
    project.agent.answer(AttachRequest, *answers)
    with pytest.raises(ClusterError) as caught:
        list(attach(cluster, "pi-1"))
    assert (caught.value.message, caught.value.exit_code) == (message, code)


def with_lease(project: Project, lease: float | None) -> Cluster:
    """A cluster on three hosts, whose first answer with its topology gets lost."""
    project.bring_up(SPEC)
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


def coordinator(address: str) -> list[EventRecord]:
    """The event by which beta is to join a group, which the command handles itself, and one that it passes on."""
    event = {"event": "coordinator", "run": "train-1", "hosts": ["beta"], "address": address}
    return [EventRecord(event), EventRecord({"event": "progress"})]


def test_a_host_that_is_lost_again_while_it_joins_joins_once_more_at_the_latest_address(project: Project) -> None:
    project.bring_up(SPEC)
    project.patch.setattr(settings, "GROUP_REJOIN_SECONDS", 0.01)
    agent, answered = project.agent, threading.Event()

    def join(request: JoinRequest, host: str) -> Iterator[object]:
        answered.wait(60)
        yield Reply(Done())

    def addresses() -> list[str]:
        return [request.coordinator for request in agent.asked(JoinRequest)]

    places = [record for name in ("first", "second", "third", "fourth") for record in coordinator(name)]
    agent.answer(RunRequest, [EventRecord({"event": "submitted", "run": "train-1"}), *places, WAIT])
    agent.answer(SendCodeRequest, [Reply(Done())])
    agent.answer(JoinRequest, [Reply(Done())], join)
    parameters = {"path": str(project.file("train.py")), "cwd": str(project.folder), "module": None, "argument": ""}
    submission = make_group(RunSubmission(RunOptions("script", parameters)), ())
    with closing(launch(submission, find_cluster("three"))) as events:
        assert [next(events)["event"] for _ in range(2)] == ["submitted", "progress"]
        assert addresses() == ["first"]
        agent.away = {"beta"}
        agent.contacted.clear()
        next(events)
        wait_for(lambda: "beta" in agent.contacted)
        next(events)
        agent.contacted.clear()
        wait_for(lambda: "beta" in agent.contacted)  # for the third, and not any more for the second
        agent.away = set()
        wait_for(lambda: len(addresses()) == 2)
        next(events)
        answered.set()
        wait_for(lambda: len(addresses()) == 3)
    assert addresses() == ["first", "third", "fourth"]
