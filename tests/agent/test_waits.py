"""Which processes of a run are looked at for what they wait for, and why a task or program waits in vain."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from tests.agent.hosts import task_of, topology_of
from tests.conftest import ROOT, running, wait_for
from tfcluster import settings
from tfcluster.agent.event_loop import ChangeNotifier
from tfcluster.agent.runs import waits
from tfcluster.agent.runs.stacks import StackReader
from tfcluster.agent.runs.waits import (
    EndedMember,
    Problem,
    WaitMonitor,
    describe_remote_task,
    explain_group,
    explain_wait,
)
from tfcluster.core.forwarding import Forwarder
from tfcluster.core.groups import Group, Member, MemberObservation
from tfcluster.core.runs import RunOptions
from tfcluster.core.stacks import ProcessStacks, StackFrame, ThreadStack, Wait
from tfcluster.core.states import TaskState
from tfcluster.os import procfs
from tfcluster.os.process_handle import ProcessHandle, is_frozen
from tfcluster.processes.groups.member_states import MemberState, read_observations, write_states
from tfcluster.processes.runs.run_plan import STACKS

WAIT = Wait("Session.run", True, "/home/me/train.py", 12, "main")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that is bound to a port, and does not listen yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def describe(listener: socket.socket) -> Problem:
    task = task_of("worker:1", "b", port=listener.getsockname()[1], address_host="127.0.0.1")
    return asyncio.run(describe_remote_task(task))


def test_a_port_on_which_no_server_listens_or_one_that_does_not_answer(listener: socket.socket) -> None:
    found = describe(listener)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    expected = f"worker:1 at {address} on b refuses connections: no server listens there, or a firewall rejects them"
    assert found.problem == expected
    assert "`tfcluster doctor`" in found.hint
    assert (found.task, found.host) == ("/job:worker/task:1", "b")
    listener.listen()
    assert describe(listener).problem.endswith("accepts connections but does not answer: it is frozen or hangs")


async def test_a_task_behind_a_forwarder_is_described_by_how_that_takes_a_connection(listener: socket.socket) -> None:
    task = task_of("worker:1", "b", port=2222, address_host="localhost")
    port = listener.getsockname()[1]
    place = Forwarder("127.0.0.1", port, (2222,))
    expected = f"worker:1 at 127.0.0.1:{port} on b refuses connections: no forwarder listens there, or a firewall"
    assert (await describe_remote_task(task, place)).problem.startswith(expected)
    listener.listen()
    assert "though the forwarder there does" in (await describe_remote_task(task, place)).problem


async def test_a_name_is_looked_up_in_a_child_process(listener: socket.socket) -> None:
    """The agent forks, so it must have no other thread, as asyncio starts one to look up a name."""
    before = {*threading.enumerate()}
    task = task_of("worker:1", "b", port=listener.getsockname()[1], address_host="localhost")
    assert "refuses connections" in (await describe_remote_task(task)).problem
    assert {*threading.enumerate()} <= before


def test_a_port_that_answers_nothing(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "WAIT_CONNECT_SECONDS", 0.2)
    listener.listen(0)
    with ExitStack() as stack:  # the kernel drops more connections than fit into the queue
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        assert "connections are not answered (a firewall drops them, or the host is down)" in describe(listener).problem


def explain(wait: Wait, servers: str | None = None, silent: Sequence[Any] = (), **topology: Any) -> list[Problem]:
    """Explain a wait of this process while all tasks serve but those that are `silent`."""

    async def probe(*arguments: Any) -> Any:
        return silent

    async def probe_remote() -> Any:
        return [], {}

    tasks = topology_of([task_of("worker:0", "a", port=topology.get("port", 1)), task_of("ps:0", "a")])
    tensorflow = None if servers is None else SimpleNamespace(version=servers)
    supervisor: Any = SimpleNamespace(topology=tasks, host="a", probe_all=probe, tensorflow=tensorflow)
    remote: Any = SimpleNamespace(probe_all=probe_remote)
    run: Any = SimpleNamespace(id="script-1", plan=None)
    return list(asyncio.run(explain_wait(run, os.getpid(), wait, supervisor, remote)))


def test_servers_with_another_tensorflow_than_the_program() -> None:
    (found,) = explain(WAIT, "2.1.0")
    assert f"the servers on this host run TensorFlow 2.1.0, the program {version('tensorflow')}" in found.problem
    assert found.hint == "`tfcluster down`, then `tfcluster up`, restarts the servers with the installed version."


def test_a_program_that_is_connected_to_no_task_may_have_a_proxy() -> None:
    assert "a proxy might be set in its environment" in explain(WAIT)[0].problem


def test_a_program_that_is_connected_is_told_how_to_look_further(listener: socket.socket) -> None:
    listener.listen()
    with socket.create_connection(listener.getsockname()):
        (found,) = explain(WAIT, port=listener.getsockname()[1])
    assert "they may be unable to reach each other or the program" in found.problem
    assert "`tfcluster stack script-1`" in found.hint


def test_a_program_that_may_compute_has_no_problem() -> None:
    assert explain(Wait("Session.run", False, "train.py", 12, "main")) == []


def test_beside_a_task_that_is_down_one_that_has_missed_a_probe_is_not_accused() -> None:
    def silent(short: str, state: TaskState) -> Any:
        problem = f"{short} is {state.value}"
        machine, describe = SimpleNamespace(state=state), lambda: problem
        return SimpleNamespace(spec=task_of(short, "a"), machine=machine, process=None, describe_problem=describe)

    late, down = silent("worker:0", TaskState.READY), silent("ps:0", TaskState.BACKING_OFF)
    assert [each.problem for each in explain(WAIT, silent=[late, down])] == ["ps:0 is backing-off"]
    assert [each.problem for each in explain(WAIT, silent=[late])] == ["worker:0 is ready"]


PLACES = (("chief", 0, "a"), ("worker", 0, "a"), ("worker", 1, "b"))
MEMBERS = {f"{job}:{index}": Member(job, index, rank, host, host) for rank, (job, index, host) in enumerate(PLACES)}


SHOWS_OUTPUT = "`tfcluster logs launch-1` shows what it has printed."


def explain_members(
    folder: Path,
    seen: dict[str, tuple[int, MemberObservation]],
    wait: Wait = WAIT,
    members: dict[str, Member] = MEMBERS,
    exit_codes: Mapping[str, int] = MappingProxyType({}),
) -> list[Problem]:
    """Explain the wait of a group whose coordinator is on host `a` and cannot read stacks."""

    async def read(pid: int, folder: Path) -> ProcessStacks:
        return ProcessStacks(pid, "python", (), "not now")

    states = {
        short: MemberState(pid, "alpha", exit_codes.get(short), observation)
        for short, (pid, observation) in seen.items()
    }
    write_states(folder, states)
    group = Group(tuple(members.values()), {}, "", "a")
    run: Any = SimpleNamespace(id="launch-1", folder=folder)
    stacks: Any = SimpleNamespace(read=read)
    return asyncio.run(explain_group(run, group, wait, "a", stacks))


def test_members_on_another_host_are_known_by_what_its_agent_sees(tmp_path: Path) -> None:
    here = dict.fromkeys(("chief:0", "worker:0"), (os.getpid(), MemberObservation()))

    def explain(observation: MemberObservation) -> list[str]:
        return [each.problem for each in explain_members(tmp_path, {**here, "worker:1": (7, observation)})]

    assert [each.problem for each in explain_members(tmp_path, here)] == ["worker:1 on b has not been started yet"]
    assert explain(MemberObservation()) == ["worker:1 on b has not begun to connect"]
    (problem,) = explain(MemberObservation(WAIT))
    assert problem.startswith("all members are running, and each is in a call of TensorFlow")
    frozen = ["worker:1 on b is frozen: a signal (SIGSTOP) has stopped its process, 7"]
    assert explain(MemberObservation(WAIT, is_frozen=True)) == frozen


def test_of_a_wait_in_the_middle_of_a_training_only_members_that_are_frozen_are_to_blame(tmp_path: Path) -> None:
    wait = Wait("Session.run", False, "train.py", 12, "main")
    assert explain_members(tmp_path, {"chief:0": (os.getpid(), MemberObservation())}, wait) == []
    with frozen_process() as pid:
        (problem,) = explain_members(tmp_path, {"worker:0": (pid, MemberObservation())}, wait)
    assert problem.problem == f"worker:0 on a is frozen: a signal (SIGSTOP) has stopped its process, {pid}"


def test_nobody_waits_for_an_evaluator_that_has_ended(tmp_path: Path) -> None:
    members = {**MEMBERS, "evaluator:0": Member("evaluator", 0, 3, "b", "b")}
    seen = dict.fromkeys(("chief:0", "worker:0", "worker:1", "evaluator:0"), (7, MemberObservation(WAIT)))
    ended = {"worker:1": 0, "evaluator:0": 0}
    problems = explain_members(tmp_path, seen, members=members, exit_codes=ended)
    assert problems == [EndedMember("worker:1 on b has ended (exit code 0)", SHOWS_OUTPUT, host="b")]


def test_a_coordinator_waits_in_vain_when_the_last_worker_has_ended(tmp_path: Path) -> None:
    wait = Wait("ClusterCoordinator.join", False, "train.py", 12, "main")
    seen = dict.fromkeys(MEMBERS, (7, MemberObservation(wait)))
    assert explain_members(tmp_path, seen, wait, exit_codes={"worker:0": 0}) == []
    problems = explain_members(tmp_path, seen, wait, exit_codes={"worker:0": 0, "worker:1": 0})
    assert [each.problem for each in problems] == [
        f"worker:{n} on {h} has ended (exit code 0)" for n, h in ("0a", "1b")
    ]
    assert all(isinstance(each, EndedMember) for each in problems)
    (_, other) = explain_members(tmp_path, seen, wait, exit_codes={"worker:0": 0, "worker:1": 3})
    assert not isinstance(other, EndedMember), "it ends the group as a failure"


@contextmanager
def frozen_process() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: is_frozen(process.pid))
            yield process.pid
        finally:
            process.kill()


def monitor_of_a_run(folder: Path, stacks: Any, *, members: int | None = None) -> tuple[WaitMonitor, Any]:
    """The monitor of a run, and the run, whose driver is this process; with members, it is part of a group."""
    group = None if members is None else SimpleNamespace(on=lambda host: range(members))
    record = SimpleNamespace(options=RunOptions("script", {}), stopping=None, is_part=members is not None)
    run: Any = SimpleNamespace(
        id="script-1",
        is_active=True,
        has_exited=False,
        process=ProcessHandle.from_pid(os.getpid()),
        folder=folder,
        events=folder / "events.jsonl",
        down=frozenset(),
        record=record,
        plan=SimpleNamespace(group=group, host="localhost"),
    )
    runs, none, supervisor = SimpleNamespace(runs={run.id: run}), SimpleNamespace(), SimpleNamespace(tasks={})
    return WaitMonitor("demo", supervisor, none, runs, stacks), run  # type: ignore[arg-type]


async def check(monitor: Any) -> None:
    monitor.schedule_checks()
    await asyncio.gather(*monitor._checks.tasks.values())


#: Waits in a function that looks as if it were TensorFlow's.
TENSORFLOW = "/lib/python3/site-packages/tensorflow/python/client/session.py"
WAITS_IN_A_SESSION = f"""
import sys, threading
from pathlib import Path
from tfcluster.processes.runs.program_process import enable_stack_dump
enable_stack_dump(Path(sys.argv[1]))
code = compile("def list_devices(): pause()", "{TENSORFLOW}", "exec")
exec(code, session := {{"pause": threading.Event().wait}})
session["list_devices"]()
"""


async def test_a_host_writes_down_what_it_sees_of_members_that_start_later_too(tmp_path: Path) -> None:
    monitor, _ = monitor_of_a_run(tmp_path, StackReader(), members=2)
    script = tmp_path / "member.py"
    script.write_text(WAITS_IN_A_SESSION)
    seen = MemberObservation(Wait("Session.list_devices", True, str(script), 8, "<module>"))
    pids: list[int] = []
    with ExitStack() as programs:
        for _ in range(2):
            member = running(sys.executable, str(script), str(tmp_path), env={**os.environ, "PYTHONPATH": str(ROOT)})
            pids.append(programs.enter_context(member).pid)
            async with asyncio.timeout(60):
                while read_observations(tmp_path) != dict.fromkeys(pids, seen):
                    await check(monitor)
                    await asyncio.sleep(0.05)


async def test_a_check_that_fails_is_in_the_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor, run = monitor_of_a_run(tmp_path, None)
    run.process = object()
    await check(monitor)
    await check(monitor)
    (record,) = caplog.records
    assert record.getMessage().startswith("script-1 cannot be checked for waits: Traceback")
    assert record.getMessage().endswith("AttributeError: 'object' object has no attribute 'is_alive'")


async def test_when_a_wait_ends_runs_are_told_which_tasks_are_down_now(tmp_path: Path) -> None:
    """A task that did not answer in the beginning may have been ready all the time: else its death is not told."""
    monitor, run = monitor_of_a_run(tmp_path, None)
    supervisor: Any = SimpleNamespace(changed=ChangeNotifier())
    monitor._supervisor = supervisor
    monitor._set_wait(run, waits._Program(wait=WAIT, is_first=True), None, 0.0)
    assert '"waiting_ended"' in run.events.read_text()
    assert supervisor.changed.count == 1


async def test_a_program_that_goes_on_while_its_stack_is_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It waits elsewhere before it is seen how often it has waited, and never again after that."""
    counts = [7, 9, 9, 10]  # before and after the first read, during which it continues, and the second one
    switches = "voluntary_ctxt_switches"
    monkeypatch.setattr(procfs, "read_status", lambda pid: {switches: counts.pop(0) if counts else 10})
    monkeypatch.setattr(settings, "WAIT_CPU_MAX_PERCENT", 1e6)
    frames = StackFrame(TENSORFLOW, 1, "list_devices"), StackFrame("a.py", 12, "main")
    reads = [(), frames]

    async def read(pid: int, folder: Path, *, main_only: bool = False) -> ProcessStacks:
        return ProcessStacks(pid, "python", (ThreadStack("main", reads.pop(0) if main_only else ()),), "")

    monitor, _ = monitor_of_a_run(tmp_path, SimpleNamespace(read=read), members=1)
    seen = []
    with (tmp_path / STACKS).open("w"):  # so this process is the program too
        for _ in range(5):
            await check(monitor)
            seen.append(read_observations(tmp_path)[os.getpid()].wait)
    waiting = Wait("Session.list_devices", True, "a.py", 12, "main")
    assert seen == [None, None, waiting, waiting, waiting]
    assert reads == [], "it is not asked any more"
