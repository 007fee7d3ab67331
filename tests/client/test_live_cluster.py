"""How a view follows a cluster: hosts that leave, go away or go down, and when it asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import wait_for
from tests.project import Project
from tfcluster import settings
from tfcluster.client.live import live_cluster
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.live.watch import changed_views, describe_losses, follow_view
from tfcluster.client.resolve import find_cluster
from tfcluster.client.status import ClusterSnapshot, take_snapshot
from tfcluster.core.states import ClusterState, HostState, RunState, TaskState
from tfcluster.core.status import ClusterStatus, HostStatus, aggregate_status, unknown_task_status
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import state_folder
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import StatusReply, StatusRequest, TopologyRequest
from tfcluster.protocol.api.logs import ClusterEvent
from tfcluster.protocol.api.processes import TaskThreadsReply, TaskThreadsRequest
from tfcluster.protocol.api.runs import RunsReply, RunsRequest, RunSummary
from tfcluster.protocol.api.view import RunReport, ViewReply, ViewRequest
from tfcluster.ui.top.rows import describe_activity

SPEC = "name: two\nhosts: [a, b]\njobs: {ps: {tasks: 1, hosts: [b]}, worker: {tasks: 2, hosts: [a, b]}}\n"
AWAY = ClusterError("it cannot be reached", exit_code=ExitCode.UNREACHABLE)
DOWN = ClusterError("not running", exit_code=ExitCode.NOT_RUNNING)


def run_of(name: str) -> RunSummary:
    return RunSummary(name, "linear", {}, RunState.RUNNING, 1.0, time.time(), None, None, None, None)


@dataclass
class Agent:
    """What the agent of a host answers; `error`, instead of anything about the cluster, if it is not None."""

    host: str
    topology: ClusterTopology
    error: ClusterError | None = None
    started: float = 1.0
    state: TaskState = TaskState.READY
    events: list[ClusterEvent] = field(default_factory=list)
    runs: tuple[RunSummary, ...] = ()
    reports: tuple[RunReport, ...] = ()
    hangs: threading.Event | None = None  # it answers no view until this is set
    requests: list[ViewRequest] = field(default_factory=list)

    def status(self) -> ClusterStatus:
        tasks = tuple(unknown_task_status(task, self.state) for task in self.topology.on(self.host))
        hosts = (HostStatus(self.host, HostState.UP, 7, "2"),)
        return ClusterStatus("two", ClusterState.RUNNING, "two.yaml", hosts, tasks, (), started=self.started)

    def view(self, request: ViewRequest) -> ViewReply:
        version = f"{self.started} {self.state} {self.topology.generation}"
        status = None if request.known.get("status") == version else self.status()
        events, after = tuple(self.events[request.after or 0 :]), len(self.events)
        generation = self.topology.generation
        return ViewReply({"status": version}, generation, status, None, self.runs, self.reports, events, after)

    def answer(self, request: Any) -> Iterator[object]:
        if isinstance(request, RunsRequest):  # even when the cluster is down
            yield Reply(RunsReply((run_of(f"train-{self.host}"),)))
            return
        if isinstance(request, ViewRequest):
            self.requests.append(request)
            if self.hangs is not None:
                self.hangs.wait(60)
        if self.error is not None:
            yield self.error
        elif isinstance(request, ViewRequest):
            yield Reply(self.view(request))
        elif isinstance(request, StatusRequest):
            yield Reply(StatusReply(self.status(), self.topology.generation))
        else:
            yield Reply(self.topology)


class Clock:
    """A time that the test moves forward."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.module = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live_cluster, "time", clock.module)
    return clock


@pytest.fixture
def agents(project: Project) -> tuple[Agent, Agent]:
    """The agents of both hosts of a cluster, which is asked often."""
    topology = project.bring_up(SPEC)
    agents = {host: Agent(host, topology) for host in "ab"}
    for kind in (ViewRequest, StatusRequest, TopologyRequest, RunsRequest):
        project.agent.answer(kind, lambda request, host: agents[host].answer(request))
    for name in ("LIVE_POLL_SECONDS", "LIVE_RETRY_SECONDS"):
        project.patch.setattr(settings, name, 0.01)
    return agents["a"], agents["b"]


@contextmanager
def following(snapshot: ClusterSnapshot | None = None) -> Iterator[LiveCluster]:
    """Follow the cluster."""
    with closing(LiveCluster(find_cluster("two"), snapshot)) as live:
        live.start()
        yield live


@pytest.fixture
def live(agents: tuple[Agent, Agent]) -> Iterator[LiveCluster]:
    """The cluster, which is followed, and both hosts are up."""
    with following() as live:
        wait_for(lambda: states(live) == {"a": "up", "b": "up"} and live.view().status.tasks)
        yield live


def states(live: LiveCluster) -> dict[str, str]:
    return {host.host: host.state.value for host in live.view().status.hosts}


def wait_until_asked_again(agent: Agent, times: int = 4) -> None:
    """Wait until a host has been asked more often."""
    asked = len(agent.requests)
    wait_for(lambda: len(agent.requests) >= asked + times)


def later(topology: ClusterTopology, **fields: Any) -> ClusterTopology:
    return replace(topology, generation=topology.generation + 1, **fields)


def without_last_task(topology: ClusterTopology, **fields: Any) -> ClusterTopology:
    """Return a later topology, in which b has one task less."""
    return later(topology, tasks=topology.tasks[:-1], **fields)


def test_nothing_can_be_shown_before_something_is_known(agents: tuple[Agent, Agent]) -> None:
    for agent in agents:
        agent.error = AWAY
    with closing(LiveCluster(find_cluster("two"))) as live:
        assert live.version == 0
        live.start()
        wait_for(lambda: live.version > 0)
        assert states(live) == {"a": "unreachable", "b": "unreachable"}


def test_no_cluster_is_shown_without_its_tasks(project: Project, agents: tuple[Agent, Agent]) -> None:
    hides_topology = threading.Event()

    def hide(request: TopologyRequest, host: str) -> Iterator[object]:
        hides_topology.wait(60)
        yield Reply(agents[0].topology)

    project.agent.answer(TopologyRequest, hide)
    with following() as live:
        wait_for(lambda: project.agent.asked(TopologyRequest))  # so a status has arrived
        assert live.version == 0
        hides_topology.set()
        assert live.wait(0, 60.0) > 0
        assert live.view().status.tasks


def test_a_host_that_is_away_keeps_what_was_known_and_is_asked_until_it_is_back(
    live: LiveCluster, agents: tuple[Agent, Agent]
) -> None:
    _, b = agents
    b.error = AWAY
    wait_for(lambda: states(live) == {"a": "up", "b": "unreachable"})
    view = live.view()
    assert (view.links["b"].reason, view.links["a"].lost_at, view.down) == ("it cannot be reached", None, None)
    assert {task.state for task in view.status.tasks if task.host == "b"} == {TaskState.UNRESPONSIVE}
    b.error = None
    wait_for(lambda: states(live) == {"a": "up", "b": "up"} and live.view().links["b"].lost_at is None)


def test_a_host_that_has_left_while_it_was_away_is_forgotten(live: LiveCluster, agents: tuple[Agent, Agent]) -> None:
    a, b = agents
    b.error = AWAY
    wait_for(lambda: states(live)["b"] == "unreachable")
    a.topology = later(a.topology, hosts=a.topology.hosts[:1], tasks=a.topology.on("a"))
    wait_for(lambda: states(live) == {"a": "up"})
    assert [*live.view().links] == ["a"]
    wait_for(lambda: "view of b" not in {thread.name for thread in threading.enumerate()})
    assert "view of a" in {thread.name for thread in threading.enumerate()}


def test_the_numbers_of_topologies_begin_again_with_the_next_cluster(
    live: LiveCluster, agents: tuple[Agent, Agent]
) -> None:
    a, b = agents
    whole = a.topology
    a.topology = b.topology = smaller = without_last_task(whole)
    wait_for(lambda: len(live.view().status.tasks) == 2)
    a.topology = b.topology = replace(whole, generation=smaller.generation + 1)
    wait_for(lambda: len(live.view().status.tasks) == 3)
    a.topology = smaller
    wait_until_asked_again(a)
    assert len(live.view().status.tasks) == 3, "a change that has not reached this host"
    a.started = b.started = 2.0
    b.topology = smaller
    wait_for(lambda: len(live.view().status.tasks) == 2)


def test_a_cluster_that_goes_down_everywhere_and_comes_up_again(live: LiveCluster, agents: tuple[Agent, Agent]) -> None:
    a, b = agents
    a.error = DOWN
    wait_for(lambda: states(live) == {"a": "down", "b": "up"})
    assert live.view().down is None
    b.error = DOWN
    wait_for(lambda: live.view().down is not None)
    down = live.view().down
    assert down is not None
    assert down.message == "cluster 'two' went down"
    assert live.view().status.state is ClusterState.STOPPED
    a.error = b.error = None
    a.started = b.started = 2.0
    wait_for(lambda: live.view().down is None and states(live) == {"a": "up", "b": "up"})


def test_each_event_is_there_once_in_the_order_of_time(live: LiveCluster, agents: tuple[Agent, Agent]) -> None:
    a, b = agents
    a.events.append(ClusterEvent(2.0, "ready", "worker:0", ""))
    b.events.append(ClusterEvent(1.0, "died", "worker:1", ""))
    wait_for(lambda: len(live.view().events) == 2)
    a.events.append(ClusterEvent(3.0, "up", None, ""))
    wait_for(lambda: len(live.view().events) == 3)
    found = [(event["time"], event["host"]) for event in live.view().events]
    assert found == [(1.0, "b"), (2.0, "a"), (3.0, "a")]


def test_nobody_is_asked_while_nobody_looks_and_then_for_everything(
    clock: Clock, live: LiveCluster, agents: tuple[Agent, Agent]
) -> None:
    clock.ahead += settings.LIVE_LOOK_SECONDS
    quiet = [-1]

    def is_quiet() -> bool:
        quiet.append(sum(len(agent.requests) for agent in agents))
        time.sleep(0.1)  # ten times the interval
        return quiet[-1] == quiet[-2]

    wait_for(is_quiet, 30)
    version = live.version
    for agent in agents:
        agent.requests.clear()
    live.look()
    live.wait_until_asked(60.0)
    assert live.version > version
    for agent in agents:
        assert agent.requests[0].known == {}, "what is known is old"


def test_a_host_that_does_not_answer_when_somebody_looks_again_is_not_shown_as_it_was(
    clock: Clock, live: LiveCluster, agents: tuple[Agent, Agent]
) -> None:
    _, b = agents
    b.hangs = threading.Event()
    wait_until_asked_again(b, 1)
    clock.ahead += settings.LIVE_LOOK_SECONDS
    version = live.version
    live.look()
    assert live.version > version
    live.wait_until_asked(0.1)
    wait_for(lambda: live.view().links["a"].lost_at is None)
    assert live.view().links["b"].reason == "it has not answered yet"
    b.hangs.set()
    live.wait_until_asked(60.0)
    assert live.view().links["b"].lost_at is None


def test_a_lease_is_renewed_while_nobody_looks(clock: Clock, live: LiveCluster, agents: tuple[Agent, Agent]) -> None:
    a, b = agents
    a.topology = b.topology = without_last_task(a.topology, lease=0.1)
    wait_for(lambda: len(live.view().status.tasks) == 2)
    clock.ahead += settings.LIVE_LOOK_SECONDS
    for agent in agents:
        wait_until_asked_again(agent)


def test_a_watched_status_is_printed_when_a_state_changes(live: LiveCluster, agents: tuple[Agent, Agent]) -> None:
    a, _ = agents
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


def test_a_watch_goes_on_while_hosts_are_lost_and_ends_when_the_cluster_is_down(agents: tuple[Agent, Agent]) -> None:
    (a, b), cluster = agents, find_cluster("two")
    views = follow_view(cluster, take_snapshot(cluster), 5.0)
    assert next(views).status.state is ClusterState.RUNNING
    a.error = b.error = AWAY
    assert any(all(link.lost_at for link in view.links.values()) for view in views)
    a.error = b.error = None
    assert any(all(link.lost_at is None for link in view.links.values()) for view in views)
    a.error = b.error = DOWN
    with pytest.raises(ClusterError, match="went down"):
        list(views)


def test_the_runs_and_events_of_every_host_are_read_once_when_the_cluster_is_down(
    project: Project, live: LiveCluster, agents: tuple[Agent, Agent]
) -> None:
    a, b = agents
    project.agent.events = [ClusterEvent(1.0, "down", None, "")]
    for agent in agents:
        (state_folder("two", agent.host) / "runs").mkdir(parents=True)
    a.error = DOWN
    wait_for(lambda: states(live)["a"] == "down")
    wait_until_asked_again(a)  # long before the other one
    assert project.agent.asked(RunsRequest) == []
    b.error = DOWN
    wait_for(lambda: {run.record.run for run in live.view().runs} == {"train-a", "train-b"})
    assert [event["host"] for event in live.view().events] == ["a", "b"]
    wait_until_asked_again(a)
    assert len(project.agent.asked(RunsRequest)) == 2


def test_an_error_of_the_product_is_shown_and_the_host_is_asked_again(
    live: LiveCluster, agents: tuple[Agent, Agent]
) -> None:
    _, b = agents
    b.reports = (RunReport("train-b", wait={"event": "waiting"}),)  # no agent sends an event without its fields
    wait_for(lambda: live.view().links["b"].reason == "this is a bug in tfcluster: KeyError: 'problems'")
    b.reports = ()
    wait_for(lambda: live.view().links["b"].lost_at is None)


def test_a_host_that_is_down_at_first_is_asked_too_and_may_leave(agents: tuple[Agent, Agent]) -> None:
    a, b = agents
    down = aggregate_status(b.topology, {"a": HostState.DOWN, "b": HostState.DOWN})
    with following(ClusterSnapshot(b.topology, down, {}, {})) as live:
        wait_for(lambda: states(live) == {"a": "up", "b": "up"})
        a.topology = later(a.topology, hosts=a.topology.hosts[:1], tasks=a.topology.on("a"))
        wait_for(lambda: states(live) == {"a": "up"})


def test_what_a_run_waits_for_is_asked_of_all_hosts_once_for_each_wait(
    project: Project, live: LiveCluster, agents: tuple[Agent, Agent]
) -> None:
    task = "/job:worker/task:1"
    reply = TaskThreadsReply(task, "b", TaskState.READY, 7, "worker:1 is stopped", "", (), ())
    project.agent.answer(TaskThreadsRequest, [Reply(reply)])
    problem = {"problem": "no answer", "hint": "", "task": task, "host": "b"}
    wait = {"event": "waiting", "call": "Session.run", "file": "train.py", "line": 1, "problems": [problem]}
    a, _ = agents
    a.runs, a.reports = (run_of("train-a"),), (RunReport("train-a", wait=wait),)
    wait_for(lambda: [describe_activity(run) for run in live.view().runs] == ["waits: worker:1 is stopped"])
    wait_until_asked_again(a)
    assert len(project.agent.asked(TaskThreadsRequest)) == 1
    a.reports = (RunReport("train-a"),)
    wait_for(lambda: [describe_activity(run) for run in live.view().runs] == [""])
