"""The agent, its supervisor and its journal through every sequence of events, deaths, full disks and reboots.

Hypothesis chooses the events. The servers, the disk and the clock are played, see crash_world.py.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.agent.crash_world import HOST, Server, World
from tests.agent.hosts import POLICY, task_of, topology_of
from tfcluster.agent.state.journal import TaskRecord
from tfcluster.core.plan import kept_servers, plan
from tfcluster.core.reconcile import merge_with_observed
from tfcluster.core.states import TERMINAL_STATES, TaskState
from tfcluster.core.status import NOT_STARTED
from tfcluster.core.topology import ClusterTopology
from tfcluster.protocol.api.cluster import ApplyRequest, DownRequest, ObserveRequest, RestartRequest

PORTS = {"ps:0": 2222, **{f"worker:{index}": 2223 + index for index in range(3)}}
TASKS = sorted(PORTS)
POLICIES = ("on-failure", "always", "never")
OTHER_HOST = task_of("worker:9", "b", port=2300)


def topology(workers: int, cpus: int, policy: str) -> ClusterTopology:
    """A ps and some workers on this host, and a worker on another one."""
    names = ["ps:0", *(f"worker:{index}" for index in range(workers))]
    restart = replace(POLICY, policy=policy, limit=3)
    tasks = [task_of(name, HOST, port=PORTS[name], restart=restart) for name in names]
    return topology_of([replace(tasks[0], cpus=cpus), *tasks[1:], OTHER_HOST])


topologies = st.builds(topology, st.integers(1, 3), st.integers(1, 2), st.sampled_from(POLICIES))

numbers = st.integers(0, 3)


class CrashModel(RuleBasedStateMachine):
    """What may happen to a cluster on one host, and what must be true after each event."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self._folder.name))
        #: What the cluster is, by the last command that has made its change, or by the journal of an agent that died.
        self.acknowledged: ClusterTopology | None = None
        #: What the next agent makes of it, because the one before died while it changed the cluster.
        self.resumed: ClusterTopology | None = None
        self._commands: list[tuple[Any, ClusterTopology | None]] = []

    def teardown(self) -> None:
        """Whatever has happened: what can recover recovers, and `down` ends all."""
        try:
            if sys.exc_info()[0] is None:
                self._check_that_all_recovers()
        finally:
            self.world.close()
            self._folder.cleanup()

    # What the state of the world allows.

    def has_agent(self) -> bool:
        return self.world.agent is not None

    def is_up(self) -> bool:
        return self.has_agent() and self.world.context.supervisor.topology is not None and not self.is_going_down()

    def is_down(self) -> bool:
        return self.has_agent() and self.world.context.supervisor.topology is None

    def is_going_down(self) -> bool:
        return self.world.context.is_going_down

    def has_no_agent(self) -> bool:
        return not self.has_agent()

    def has_journal(self) -> bool:
        return self.has_no_agent() and self.world.state_dir.journal.path.exists()

    def has_server(self) -> bool:
        return bool(self.world.serving())

    # Commands.

    @initialize(desired=topologies, is_full=st.booleans())
    def begin(self, desired: ClusterTopology, is_full: bool) -> None:
        self.world.start_agent()
        self.up(desired, is_full)

    @precondition(has_no_agent)
    @rule()
    def start_agent(self) -> None:
        self.world.start_agent()

    @precondition(is_down)
    @rule(desired=topologies, is_full=st.booleans())
    def up(self, desired: ClusterTopology, is_full: bool) -> None:
        self._change(ApplyRequest(None, desired, "", None, ()), desired, is_full)

    @precondition(is_up)
    @rule(wanted=topologies, is_full=st.booleans())
    def change(self, wanted: ClusterTopology, is_full: bool) -> None:
        """Scale, or change in place: what differs gets new servers."""
        assert self.world.agent is not None
        handlers = self.world.agent.dispatcher.cluster
        reply = self.world.ask(handlers.observe(ObserveRequest()))
        self.note_results()
        if reply is None or reply.observed is None or not self.is_up():
            return
        desired = merge_with_observed(wanted, reply.observed)
        actions = plan(desired, reply.observed)
        if not actions:
            return
        desired = replace(desired, kept=kept_servers(actions, reply.observed))
        self.world.requested |= {task.name for task in desired.tasks}
        self._change(ApplyRequest(reply.observed.revision, desired, "", None, ()), desired, is_full)

    def _change(self, request: ApplyRequest, desired: ClusterTopology, is_full: bool) -> None:
        """Make a change; the disk may be full as long as it does not wait for anything."""
        agent, disk = self.world.agent, self.world.disk
        assert agent is not None
        recorded, was_full, disk.is_full = self._recorded_changes(), disk.is_full, is_full or disk.is_full
        command = self.world.command(agent.dispatcher.cluster.apply(request))
        self._commands.append((command, desired))
        disk.is_full = was_full
        if command.done() and not command.cancelled() and command.exception() is not None:
            assert self._recorded_changes() == recorded, "an event of a change that was not made"

    def _recorded_changes(self) -> int:
        events = self.world.state_dir.events
        return len(re.findall(r'"event": ?"(?:up|updated)"', events.read_text())) if events.exists() else 0

    @precondition(is_up)
    @rule(short=st.sampled_from(TASKS))
    def restart(self, short: str) -> None:
        supervisor = self.world.context.supervisor
        task = next((task for task in supervisor.tasks.values() if task.spec.short == short), None)
        if task is not None and self.world.agent is not None:
            if task.machine.state is not TaskState.STOPPING:
                self.world.requested.add(task.spec.name)
            self.world.ask(self.world.agent.dispatcher.cluster.restart(RestartRequest((short,), 5.0)))

    @precondition(is_up)
    @rule(grace=st.sampled_from([0.5, 5.0]))
    def down(self, grace: float) -> None:
        agent = self.world.agent
        assert agent is not None
        self._commands.append((self.world.command(agent.dispatcher.shutdown.down(DownRequest(grace))), None))

    # Events.

    @precondition(has_server)
    @rule(number=numbers, status=st.sampled_from([9, 11, 0, 256]))
    def exit(self, number: int, status: int) -> None:
        self._server(number).end(status)
        self.world.settle()

    @precondition(has_server)
    @rule(number=numbers)
    def hang(self, number: int) -> None:
        self._server(number).is_hanging = True

    @precondition(has_server)
    @rule(number=numbers)
    def resume(self, number: int) -> None:
        self._server(number).resume()
        self.world.settle()

    def _server(self, number: int) -> Server:
        serving = self.world.serving()
        return serving[number % len(serving)]

    @rule(seconds=st.sampled_from([0.2, 5.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(short=st.sampled_from(TASKS))
    def take_port(self, short: str) -> None:
        reserved = self.world.context.ports.reserved if self.has_agent() else ()
        if PORTS[short] not in {*reserved, *(server.port for server in self.world.serving())}:
            self.world.taken.add(PORTS[short])

    @rule()
    def free_ports(self) -> None:
        self.world.taken.clear()

    @rule(is_full=st.booleans())
    def fill_disk(self, is_full: bool) -> None:
        self.world.disk.is_full = is_full

    @precondition(has_agent)
    @rule(linger=st.booleans())
    def kill_agent(self, linger: bool) -> None:
        self.world.die(linger=linger)

    @rule(steps=st.just(0) | st.integers(0, 25))
    def kill_agent_at_a_later_write(self, steps: int) -> None:
        self.world.disk.steps_left = steps

    @rule(share=st.floats(0.0, 1.0), leaves_zeros=st.booleans())
    def reboot(self, share: float, leaves_zeros: bool) -> None:
        self.world.reboot(share, leaves_zeros=leaves_zeros)

    @precondition(has_journal)
    @rule(share=st.floats(0.0, 0.99), damage=st.sampled_from(["cut", "line", "missing"]))
    def damage_journal(self, share: float, damage: str) -> None:
        """The next agent refuses it, touches nothing, and leaves it as it is; then it is repaired."""
        path = self.world.state_dir.journal.path
        content, forked = path.read_bytes(), len(self.world.servers)
        first, _, rest = content.partition(b"\n")
        path.write_bytes(first[: int(share * len(first))] if damage == "cut" else first + b"\n{}\n" + rest)
        if damage == "missing":
            path.unlink()
            if not self.world.serving():  # then the cluster counts as down
                path.write_bytes(content)
                return
        damaged = path.read_bytes() if path.exists() else None
        self.world.start_agent()
        if self.world.agent is not None:
            assert self.world.agent.dispatcher.unreadable is not None
            assert self.world.context.supervisor.topology is None
            self.world.die(linger=False)
        assert (path.read_bytes() if path.exists() else None) == damaged
        assert len(self.world.servers) == forked
        path.write_bytes(content)

    # What is true after each event.

    @invariant()
    def note_results(self) -> None:
        """A command that has ended has made its change, or none; the journal tells what those of a dead agent did."""
        for command, result in [each for each in self._commands if each[0].done()]:
            self._commands.remove((command, result))
            if command.exception() is None and getattr(command.result(), "conflict", None) is None:
                self.acknowledged = result
                self.world.requested -= {task.name for task in result.tasks} if result else set()
        if not self.has_agent():
            record = self.world.state_dir.journal.read(HOST)
            recorded, self.resumed = (record.topology, record.next) if record else (None, None)
            assert _plain(recorded) in map(_plain, self._possible())
            self.acknowledged, self._commands = recorded, []
        elif self.resumed is not None and not self.world.is_changing():
            if _plain(self.world.context.supervisor.topology) == _plain(self.resumed):
                self.acknowledged = self.resumed
            self.resumed = None

    def _possible(self) -> list[ClusterTopology | None]:
        """What the cluster may be: what was acknowledged last, or what a change that is in progress makes of it."""
        return [self.acknowledged, *([self.resumed] if self.resumed else []), *(result for _, result in self._commands)]

    @invariant()
    def no_task_has_two_servers(self) -> None:
        for short in TASKS:
            assert len([server for server in self.world.serving() if server.port == PORTS[short]]) <= 1, short

    @invariant()
    def no_server_is_forgotten(self) -> None:
        """An agent supervises all that run; if there is none, the journal names them."""
        running = {server.process for server in self.world.serving()}
        if not self.has_agent():
            record = self.world.state_dir.journal.read(HOST)
            assert running <= {task.process for task in record.tasks.values()} if record else not running
            return
        alive = {server.process for server in self.world.servers if server.is_alive}
        tasks = self.world.context.supervisor.tasks.values()
        assert alive == running == {task.process for task in tasks if task.process is not None}

    @invariant()
    def the_journal_has_what_was_acknowledged(self) -> None:
        record = self.world.state_dir.journal.read(HOST)
        assert _plain(record.topology if record else None) in map(_plain, self._possible())
        if not self.has_agent():
            return
        supervisor = self.world.context.supervisor
        assert _plain(supervisor.topology) in map(_plain, self._possible())
        if supervisor.journal_obstacle or self.world.disk.is_full:
            return
        if supervisor.topology is not None:
            assert record is not None
            assert record.topology == supervisor.topology
            assert record.next is None or self.world.is_changing(), "a change that was refused is not resumed"
            tasks = {name: task.to_record() for name, task in supervisor.tasks.items()}
            assert _without_attempts(record.tasks) == _without_attempts(tasks)

    @invariant()
    def restarts_are_counted(self) -> None:
        for server in self.world.serving() if self.has_agent() else ():
            counted = self.world.context.supervisor.tasks[server.task].machine.restarts
            assert server.restarts is None or counted in server.restarts, (server.task, counted, server.restarts)
            server.restarts = frozenset({counted})

    def _check_that_all_recovers(self) -> None:
        world = self.world
        world.disk.is_full, world.disk.steps_left = False, None
        world.taken.clear()
        for server in world.serving():
            server.resume()
        if world.agent is None:
            world.start_agent()
        world.settle()
        for _ in range(10):
            world.pass_time(60.0)
        self.note_results()
        if self.is_up():
            states = {name: task.machine.state for name, task in world.context.supervisor.tasks.items()}
            assert set(states.values()) <= {TaskState.READY, *TERMINAL_STATES}, states
            self.down(5.0)
            world.pass_time(60.0)
        assert not [server for server in world.servers if server.is_alive]
        left = {path.name for path in world.folder.iterdir()} if world.folder.exists() else set()
        assert world.agent is not None or left <= {"logs", "runs"}


def _without_attempts(tasks: dict[str, TaskRecord]) -> dict[str, TaskRecord]:
    """Leave out when a task that cannot be started is tried again: further attempts are not written."""
    return {
        name: replace(task, deadline=None) if task.last_exit and task.last_exit.reason == NOT_STARTED else task
        for name, task in tasks.items()
    }


def _plain(topology: ClusterTopology | None) -> object:
    return topology and (topology.generation, topology.tasks)


INVARIANTS = [
    "note_results",
    "no_task_has_two_servers",
    "no_server_is_forgotten",
    "the_journal_has_what_was_acknowledged",
    "restarts_are_counted",
]
Step = tuple[str, dict[str, Any]]


@contextlib.contextmanager
def after(*steps: Step) -> Iterator[CrashModel]:
    """The model after a sequence of events, each by its name and arguments, with a look at it after each of them."""
    model = CrashModel()
    try:
        for name, arguments in steps:
            if name != "start_agent" or model.has_no_agent():
                getattr(model, name)(**arguments)
            for invariant in INVARIANTS:
                getattr(model, invariant)()
        yield model
    finally:
        model.teardown()


def begins(workers: int) -> Step:
    return "begin", {"desired": topology(workers, 1, "on-failure"), "is_full": False}


def changes(workers: int, cpus: int) -> Step:
    return "change", {"wanted": topology(workers, cpus, "on-failure"), "is_full": False}


#: How often an agent writes when it changes the cluster of `begins(2)` to that of `changes(3, 2)`.
WRITES = 26


def test_a_change_has_no_more_writes_than_are_looked_at() -> None:
    kill = ("kill_agent_at_a_later_write", {"steps": WRITES})
    with after(begins(2), kill, changes(3, 2), ("pass_time", {"seconds": 40.0})) as model:
        assert model.acknowledged is not None
        assert len(model.acknowledged.tasks) == len(topology(3, 2, "on-failure").tasks)


@pytest.mark.parametrize("writes", range(WRITES))
def test_an_agent_killed_after_each_write_of_a_change(writes: int) -> None:
    """The change has not begun, or the next agent completes it."""
    kill = ("kill_agent_at_a_later_write", {"steps": writes})
    later = ("pass_time", {"seconds": 40.0})
    with after(begins(2), kill, changes(3, 2), later, ("start_agent", {}), later) as model:
        world, changed = model.world, model.acknowledged
        assert changed is not None
        if len(changed.tasks) == len(topology(2, 1, "on-failure").tasks):
            assert [server.is_alive for server in world.servers[:3]] == [True] * 3, "nothing was stopped for it"
        else:
            assert _plain(changed) == _plain(world.context.supervisor.topology)
            assert {server.port for server in world.serving()} == {*PORTS.values()}


def test_a_change_that_a_full_disk_has_refused_is_not_resumed() -> None:
    full, free = (("fill_disk", {"is_full": is_full}) for is_full in (True, False))
    later = ("pass_time", {"seconds": 40.0})
    begun = (begins(1), ("hang", {"number": 0}), changes(1, 2))  # it waits for the ps, which does not end
    with after(
        *begun, full, later, free, later, ("kill_agent", {"linger": False}), ("start_agent", {}), later
    ) as model:
        assert model.acknowledged is not None
        assert model.acknowledged.tasks[0].cpus == 1


def test_a_change_that_the_next_agent_cannot_complete_is_an_event() -> None:
    begun = (begins(1), ("hang", {"number": 0}), changes(2, 2), ("kill_agent", {"linger": False}))
    with after(
        *begun, ("take_port", {"short": "worker:1"}), ("start_agent", {}), ("pass_time", {"seconds": 5.0})
    ) as model:
        events = model.world.state_dir.events.read_text()
        assert re.search(r'"update-failed".*port 2224 is taken by a stranger', events)
        assert model.acknowledged is not None
        assert model.acknowledged.tasks[0].cpus == 1


def test_a_change_that_cannot_be_recorded_stops_nothing() -> None:
    change = ("change", {"wanted": topology(3, 2, "on-failure"), "is_full": True})
    with after(begins(2), change, ("pass_time", {"seconds": 40.0})) as model:
        assert [server.is_alive for server in model.world.servers] == [True] * 3


def test_a_server_that_dies_during_a_change_begins_its_count_again_with_it() -> None:
    """The change starts it once more: the server that the agent has started by then has the old addresses."""
    dies = ("exit", {"number": 1, "status": 9})
    with after(begins(1), ("hang", {"number": 0}), changes(1, 1), changes(1, 2), dies, changes(1, 1)) as model:
        assert model.world.context.supervisor.tasks["/job:worker/task:0"].machine.restarts == 0


@pytest.mark.parametrize(
    ("examples", "is_long"), [(20, False), pytest.param(120, True, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_whatever_happens(pytestconfig: pytest.Config, examples: int, is_long: bool) -> None:
    """Nothing is supervised twice or forgotten, the journal has what was acknowledged, and `down` ends all.

    Only the long variant looks for the shortest sequence that fails, which takes minutes. `--examples N` tries others,
    each time.
    """
    phases = [Phase.generate, *([Phase.shrink] if is_long else [])]
    asked = pytestconfig.getoption("examples")
    chosen = settings(max_examples=asked or examples, derandomize=not asked, stateful_step_count=40, phases=phases)
    run_state_machine_as_test(CrashModel, settings=chosen)
