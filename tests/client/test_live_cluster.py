"""How a view follows a cluster whose agents are made up: hosts that leave, go away or go down, and when it asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.agent.hosts import topology_of
from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live import live_cluster
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.live.watch import changed_views, describe_losses, follow_view
from tfcluster.client.status import ClusterSnapshot
from tfcluster.core.states import ClusterState, HostState, RunState, TaskState
from tfcluster.core.status import ClusterStatus, HostStatus, aggregate_status, unknown_task_status
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.api.logs import ClusterEvent, EventsRequest
from tfcluster.protocol.api.runs import RunsReply, RunsRequest, RunSummary
from tfcluster.protocol.api.view import RunReport, ViewReply, ViewRequest
from tfcluster.ui.top.rows import describe_activity


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIVE_POLL_SECONDS", "LIVE_RETRY_SECONDS"):
        monkeypatch.setattr(settings, name, 0.01)


def run_of(name: str) -> RunSummary:
    return RunSummary(name, "linear", {}, RunState.RUNNING, 1.0, time.time(), None, None, None, None)


@dataclass
class FakeAgent:
    """Answers as the agent of a host does; `error` is raised instead if it is not None."""

    host: str
    topology: ClusterTopology
    error: ClusterError | None = None
    started: float = 1.0
    state: TaskState = TaskState.READY
    events: list[ClusterEvent] = field(default_factory=list)
    requests: list[ViewRequest] = field(default_factory=list)
    runs: tuple[RunSummary, ...] = ()
    reports: tuple[RunReport, ...] = ()
    bug: Exception | None = None
    has_rest: bool = False  # runs and events that can be read when the cluster is down
    rest_read: int = 0

    @property
    def transport(self) -> Any:
        return self

    is_remote = False

    def has_state(self) -> bool:
        return self.has_rest

    def stream(self, request: Any, **options: Any) -> Any:
        if not isinstance(request, EventsRequest):  # a status is asked for while no host answers
            raise self.error or AWAY
        return FakeStream()

    def call(self, request: Any, **options: Any) -> Any:
        if isinstance(request, RunsRequest):
            self.rest_read += 1
            return RunsReply((run_of(f"train-{self.host}"),))
        if self.bug is not None:
            raise self.bug
        if self.error is not None:
            raise self.error
        if isinstance(request, TopologyRequest):
            return self.topology
        self.requests.append(request)
        tasks = tuple(unknown_task_status(task, self.state) for task in self.topology.on(self.host))
        status = ClusterStatus(
            *("demo", ClusterState.RUNNING, "demo.yaml", (HostStatus(self.host, HostState.UP, 7, "2"),), tasks, ()),
            started=self.started,
        )
        version = f"{self.started} {self.state}"
        is_known = request.known.get("status") == version
        events, after = self.events[request.after or 0 :], len(self.events)
        return ViewReply(
            *(
                {"status": version},
                self.topology.generation,
                None if is_known else status,
                None,
                self.runs,
                self.reports,
            ),
            tuple(events),
            after,
        )


class FakeStream:
    """The response of an agent that has no events."""

    def __init__(self) -> None:
        self.timeout = 1.0

    def __next__(self) -> Any:
        raise StopIteration

    def close_and_reap(self) -> None:
        pass


class FakeCluster(Cluster):
    """The hosts a and b."""

    def __init__(self, agents: dict[str, FakeAgent]) -> None:
        super().__init__("demo", topology_of().hosts, "a")
        self.agents = agents

    def connect(self, host: str) -> Any:
        return self.agents[host]

    def with_hosts_of(self, topology: ClusterTopology) -> Cluster:
        return self


@contextmanager
def followed() -> Iterator[tuple[LiveCluster, FakeAgent, FakeAgent]]:
    """Follow both hosts, and return their agents too."""
    agents = {name: FakeAgent(name, topology_of()) for name in ("a", "b")}
    live = LiveCluster(FakeCluster(agents))
    with closing(live):
        live.start()
        wait_for(lambda: states(live) == {"a": "up", "b": "up"})
        yield live, agents["a"], agents["b"]


def states(live: LiveCluster) -> dict[str, str]:
    return {host.host: host.state.value for host in live.view().status.hosts}


AWAY = ClusterError("it cannot be reached", exit_code=ExitCode.UNREACHABLE)
DOWN = ClusterError("not running", exit_code=ExitCode.NOT_RUNNING)


def test_nothing_can_be_shown_before_something_is_known() -> None:
    agents = {name: FakeAgent(name, topology_of(), AWAY) for name in ("a", "b")}
    live = LiveCluster(FakeCluster(agents))
    assert live.version == 0
    with closing(live):
        live.start()
        wait_for(lambda: live.version > 0)
        assert states(live) == {"a": "unreachable", "b": "unreachable"}


def test_no_cluster_is_shown_without_its_tasks() -> None:
    agents = {name: FakeAgent(name, topology_of()) for name in ("a", "b")}
    hides_topology = threading.Event()

    def call(request: Any, **options: Any) -> Any:
        if isinstance(request, TopologyRequest):
            hides_topology.wait()
        return FakeAgent.call(agents["a"], request, **options)

    live = LiveCluster(FakeCluster(agents))
    with closing(live), pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents["a"], "call", call)
        patch.setattr(agents["b"], "call", call)
        live.start()
        wait_for(lambda: live._version > 0)
        assert live.version == 0
        hides_topology.set()
        assert live.wait(0, 60.0) > 0
        assert live.view().status.tasks


def test_a_host_that_is_away_keeps_what_was_known_and_is_asked_until_it_is_back() -> None:
    with followed() as (live, _, b):
        b.error = AWAY
        wait_for(lambda: states(live) == {"a": "up", "b": "unreachable"})
        view = live.view()
        assert (view.links["b"].reason, view.links["a"].lost_at, view.down) == ("it cannot be reached", None, None)
        assert {task.state for task in view.status.tasks if task.host == "b"} == {TaskState.UNRESPONSIVE}
        b.error = None
        wait_for(lambda: states(live) == {"a": "up", "b": "up"} and live.view().links["b"].lost_at is None)


def test_a_host_that_has_left_while_it_was_away_is_forgotten() -> None:
    with followed() as (live, a, b):
        b.error = AWAY
        wait_for(lambda: states(live)["b"] == "unreachable")
        known = a.topology
        a.topology = replace(known, generation=known.generation + 1, hosts=known.hosts[:1], tasks=known.on("a"))
        wait_for(lambda: states(live) == {"a": "up"})
        assert [*live.view().links] == ["a"]
        wait_for(lambda: "view of b" not in {thread.name for thread in threading.enumerate()})
        assert "view of a" in {thread.name for thread in threading.enumerate()}


def test_the_numbers_of_topologies_begin_again_with_the_next_cluster() -> None:
    with followed() as (live, a, b):
        later = replace(a.topology, generation=a.topology.generation + 5)
        a.topology = b.topology = later
        wait_for(lambda: a.requests and live._topology is later)
        earlier = replace(later, generation=0, tasks=later.on("a"))
        a.topology = earlier
        asked = len(a.requests)
        wait_for(lambda: len(a.requests) > asked + 3)
        assert len(live.view().status.tasks) == len(later.tasks), "a change that has not reached this host"
        a.started = b.started = 2.0
        b.topology = earlier
        wait_for(lambda: len(live.view().status.tasks) == len(earlier.tasks))


def test_a_cluster_that_goes_down_everywhere_and_comes_up_again() -> None:
    with followed() as (live, a, b):
        a.error = DOWN
        wait_for(lambda: states(live) == {"a": "down", "b": "up"})
        assert live.view().down is None
        b.error = DOWN
        wait_for(lambda: live.view().down is not None)
        down = live.view().down
        assert down is not None
        assert down.message == "cluster 'demo' went down"
        assert live.view().status.state is ClusterState.STOPPED
        a.error = b.error = None
        a.started = b.started = 2.0
        wait_for(lambda: live.view().down is None and states(live) == {"a": "up", "b": "up"})


def test_each_event_is_there_once_in_the_order_of_time() -> None:
    with followed() as (live, a, b):
        a.events.append(ClusterEvent(2.0, "ready", "worker:0", ""))
        b.events.append(ClusterEvent(1.0, "died", "worker:1", ""))
        wait_for(lambda: len(live.view().events) == 2)
        a.events.append(ClusterEvent(3.0, "up", None, ""))
        wait_for(lambda: len(live.view().events) == 3)
        found = [(event["time"], event["host"]) for event in live.view().events]
        assert found == [(1.0, "b"), (2.0, "a"), (3.0, "a")]


def test_nobody_is_asked_while_nobody_looks_and_then_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    with followed() as (live, a, b):
        monkeypatch.setattr(settings, "LIVE_LOOK_SECONDS", 0.0)
        quiet = [-1]

        def is_quiet() -> bool:
            quiet.append(len(a.requests) + len(b.requests))
            time.sleep(0.1)  # ten times the interval
            return quiet[-1] == quiet[-2]

        wait_for(is_quiet)
        version = live.version
        monkeypatch.undo()
        a.requests.clear()
        live._looked_at = -settings.LIVE_LOOK_SECONDS
        live.look()
        live.wait_until_asked(60.0)
        assert live.version > version
        wait_for(lambda: a.requests)
        assert a.requests[0].known == {}, "what is known is old"


def test_a_host_that_does_not_answer_when_somebody_looks_again_is_not_shown_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with followed() as (live, _, b):
        hangs, call = threading.Event(), b.call

        def call_later(request: Any, **options: Any) -> Any:
            hangs.wait()
            return call(request, **options)

        monkeypatch.setattr(b, "call", call_later)
        live._looked_at = -settings.LIVE_LOOK_SECONDS
        version = live.version
        live.look()
        assert live.version > version
        live.wait_until_asked(0.1)
        wait_for(lambda: live.view().links["a"].lost_at is None)
        assert live.view().links["b"].reason == "it has not answered yet"
        hangs.set()
        live.wait_until_asked(60.0)
        assert live.view().links["b"].lost_at is None


def test_a_lease_is_renewed_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    with followed() as (live, a, b):
        a.topology = b.topology = replace(a.topology, generation=a.topology.generation + 1, lease=0.1)
        wait_for(lambda: live._topology is a.topology)
        monkeypatch.setattr(settings, "LIVE_LOOK_SECONDS", 0.0)
        asked = len(a.requests), len(b.requests)
        wait_for(lambda: len(a.requests) > asked[0] + 3 and len(b.requests) > asked[1] + 3)


def snapshot_of(live: LiveCluster) -> ClusterSnapshot:
    return ClusterSnapshot(topology_of(), live.view().status, {}, {})


def test_a_watched_status_is_printed_when_a_state_changes() -> None:
    with followed() as (live, a, _):
        first = live.view()
        tasks = tuple(replace(task, uptime_s=5.0, cpu_percent=3.0) for task in first.status.tasks)
        older = replace(first, status=replace(first.status, tasks=tasks))
        a.state = TaskState.FAILED
        wait_for(lambda: any(task.state is TaskState.FAILED for task in live.view().status.tasks))
        failed = live.view()
        a.error = AWAY
        wait_for(lambda: live.view().links["a"].lost_at is not None)
        lost = live.view()
        assert list(changed_views([first, older, failed, failed, lost])) == [first, failed, lost]
        assert [line.partition(": ")[2] for line in describe_losses(lost)] == ["it cannot be reached"]
        assert describe_losses(lost)[0].startswith("a does not answer since ")
        assert describe_losses(failed) == []


def test_a_watch_goes_on_while_hosts_are_lost_and_ends_when_the_cluster_is_down() -> None:
    with followed() as (live, a, b):
        cluster = FakeCluster({"a": a, "b": b})
        views = follow_view(cluster, snapshot_of(live), 5.0)
        assert next(views).status.state is ClusterState.RUNNING
        a.error = b.error = AWAY
        assert any(all(link.lost_at for link in view.links.values()) for view in views)
        a.error = b.error = None
        assert any(all(link.lost_at is None for link in view.links.values()) for view in views)
        a.error = b.error = DOWN
        with pytest.raises(ClusterError, match="went down"):
            list(views)


def test_the_runs_and_events_of_every_host_are_read_once_when_the_cluster_is_down() -> None:
    with followed() as (live, a, b):
        for agent in (a, b):
            agent.has_rest = True
        a.error = DOWN
        wait_for(lambda: live._hosts["a"].times_down > 3)  # long before the other one
        assert a.rest_read == 0
        b.error = DOWN
        wait_for(lambda: {run.record.run for run in live.view().runs} == {"train-a", "train-b"})
        wait_for(lambda: live._hosts["a"].times_down > 10)
        assert (a.rest_read, b.rest_read) == (1, 1)


def test_an_error_of_the_product_is_shown_and_the_host_is_asked_again() -> None:
    with followed() as (live, _, b):
        b.bug = KeyError("versions")
        wait_for(lambda: live.view().links["b"].reason == "this is a bug in tfcluster: KeyError: 'versions'")
        b.bug = None
        wait_for(lambda: live.view().links["b"].lost_at is None)


def test_a_host_that_is_down_at_first_is_asked_too_and_may_leave() -> None:
    agents = {name: FakeAgent(name, topology_of()) for name in ("a", "b")}
    down = FakeAgent("b", topology_of()).topology
    status = aggregate_status(down, {"a": HostState.DOWN, "b": HostState.DOWN})
    live = LiveCluster(FakeCluster(agents), ClusterSnapshot(down, status, {}, {}))
    with closing(live):
        live.start()
        wait_for(lambda: states(live) == {"a": "up", "b": "up"})
        known = agents["a"].topology
        fewer = replace(known, generation=known.generation + 1, hosts=known.hosts[:1], tasks=known.on("a"))
        agents["a"].topology = fewer
        wait_for(lambda: states(live) == {"a": "up"})


def test_what_a_run_waits_for_is_asked_of_all_hosts_once_for_each_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask_hosts(cluster: Any, event: Any) -> Any:
        asked.append(event)
        return {**event, "problems": [{"problem": "worker:1 is stopped"}]}

    monkeypatch.setattr(live_cluster, "ask_hosts", ask_hosts)
    wait = {"event": "waiting", "call": "Session.run", "problems": [{"problem": "no answer"}]}
    with followed() as (live, a, _):
        a.runs = (run_of("train-a"),)
        a.reports = (RunReport("train-a", wait=wait),)
        wait_for(lambda: [describe_activity(run) for run in live.view().runs] == ["waits: worker:1 is stopped"])
        seen = len(a.requests)
        wait_for(lambda: len(a.requests) > seen + 3)
        assert asked == [wait]
        a.reports = (RunReport("train-a"),)
        wait_for(lambda: [describe_activity(run) for run in live.view().runs] == [""])
