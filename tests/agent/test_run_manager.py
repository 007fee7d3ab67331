"""How runs end that lose their tasks, their time, their agent or the command that waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import math
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT, SCRIPTS, running
from tfcluster import settings
from tfcluster.agent import event_loop
from tfcluster.agent.handlers.runs import follow
from tfcluster.agent.runs.manager import ContainerCleaner, RunManager, final_record
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.state_machine import RunPhase, RunStateMachine
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.tasks.health import ProbeOutcome, ProbeResult
from tfcluster.core.run_events import ErrorEvent
from tfcluster.core.runs import RunOptions
from tfcluster.core.states import RunState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.runs.run_plan import RunPlan, acquire_run, append_event

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
NEW = "/job:worker/task:2"
DEVICES = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in (0, 1)]


cleared: list[str] = []


async def clear(container: str) -> None:
    cleared.append(container)


async def check_tasks() -> dict[str, str]:
    """No task is elsewhere."""
    return {}


@pytest.fixture
def runs(tmp_path: Path) -> RunManager:
    folder = StateDir(tmp_path)
    folder.make()
    return RunManager("title", folder, clear, check_tasks)


def next_agent(runs: RunManager, clear: Callable[[str], Awaitable[None]] = clear) -> RunManager:
    later = RunManager("title", StateDir(runs.store.path.parent), clear, check_tasks)
    later.adopt()
    return later


def submit(runs: RunManager, program: str, timeout: float | None = None, detached: bool = False) -> Run:
    """A run that waits for its driver."""
    identity = f"{program}-1"
    cleared.clear()
    runs.store.make_folder(identity)
    folder = runs.store.folder(identity)
    addresses = {"ps": ["localhost:1"], "worker": ["localhost:2", "localhost:3"]}
    options = RunOptions(program, {}, timeout=timeout)
    return runs.submit(RunPlan(identity, "demo", options, folder, addresses, "localhost:2", DEVICES, []), detached)


async def ended(runs: RunManager, run: Run) -> str:
    """Wait until a run has ended; what its last event says of why."""
    while run.is_active:
        await asyncio.wait_for(runs.changed.wait_for_change(runs.changed.count), 30)
    record = runs.store.read(run.id)
    assert record == run.record
    last = json.loads(run.events.read_text().splitlines()[-1])
    assert (last["event"], last["state"], last.get("error")) == ("result", run.record.state.value, run.record.error)
    return str((run.record.error or {}).get("message"))


async def test_a_run_uses_the_tasks_of_its_devices_or_all_and_its_error_names_those_that_it_lost(
    runs: RunManager,
) -> None:
    submit(runs, "pi")
    run = submit(runs, "graph")
    assert runs.tasks_in_use([PS, W0, W1]) == {"pi-1": [W0, W1], "graph-1": [PS, W0, W1]}
    assert RunStore(runs.store.path).read("graph-1") == run.record, "the next agent knows"
    runs.on_task_health([PS, W0, W1], {PS: "ps:0 died (SIGKILL)"})
    assert run.record.stopping is None, "the program says so itself"
    runs.fail(run, ClusterError("one of the tasks was lost"))
    assert await ended(runs, run) == "ps:0 died (SIGKILL)\nafter that, one of the tasks was lost"
    assert run.record.state is RunState.FAILED
    assert cleared == [], "it never had a driver"


async def test_the_error_of_a_script_names_the_tasks_that_were_down_during_it(runs: RunManager) -> None:
    run = submit(runs, "script")
    runs.on_task_health([PS, W0, W1], {W1: "worker:1 on b died (SIGKILL)", NEW: "worker:2 is starting"})
    runs.on_task_health([PS, W0, W1], {W1: "worker:1 on b is starting"})
    runs.on_task_health([PS, W0, W1], {})
    events = [json.loads(line) for line in run.events.read_text().splitlines()]
    down = {"event": "task_down", "task": W1, "problem": "worker:1 on b died (SIGKILL)"}
    assert events[1:] == [down], "once for each loss, and not for a task that the run does not know"
    runs.fail(run, ClusterError("train.py failed: Session 1a2b is not found.\nand 200 lines more"))
    first, second = (await ended(runs, run)).splitlines()
    assert first == "worker:1 on b died (SIGKILL)", "the first cause"
    assert second == "after that, train.py failed: Session 1a2b is not found."


async def test_a_run_fails_after_a_timeout_without_any_task(runs: RunManager, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(runs, "pi")
    runs.on_task_health([W0, W1], {W1: "one died"})
    assert run.all_lost_timer.handle is None, "one is left"
    both = {W0: "zero died", W1: "one died"}
    runs.on_task_health([W0, W1], both)
    waiting = run.all_lost_timer.handle
    assert waiting is not None
    runs.on_task_health([W0, W1], both)
    assert run.all_lost_timer.handle is waiting, "the time runs from the first moment"
    runs.on_task_health([W0, W1], {W1: "one died"})
    assert waiting.cancelled(), "one is back"
    monkeypatch.setattr(settings, "RUN_ALL_TASKS_LOST_SECONDS", 0.0)
    runs.on_task_health([W0, W1], both)
    assert await ended(runs, run) == "one, zero died during pi-1"


def play_fork_server(patch: pytest.MonkeyPatch, orders: dict[str, Any]) -> None:
    """Have the fork servers that are started from now on be played by tests/scripts/played_fork_server.py."""
    source = (SCRIPTS / "played_fork_server.py").read_text()
    patch.setenv("PYTHONPATH", f"{ROOT / 'tests' / 'changed'}:{ROOT}")
    patch.setenv("TEST_CHANGES", json.dumps({"tfcluster.processes.runs.fork_server": source}))
    patch.setenv("TEST_FORK_SERVER", json.dumps(orders))


@pytest.mark.parametrize(
    ("answer", "parameter", "seconds", "message"),
    [
        ({}, 1.0, 0.01, "no driver could be started for graph-1 within 0.01 s"),
        ({"error": "no more processes"}, 1.0, 30.0, "no driver could be started for graph-1: no more processes"),
        ({}, math.inf, 30.0, "graph-1 cannot be sent to its driver: Out of range float values are not JSON compliant"),
    ],
    ids=["hangs", "refuses", "cannot be asked"],
)
async def test_a_run_fails_with_the_reason_why_its_fork_server_starts_no_driver(
    runs: RunManager,
    monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, str],
    parameter: float,
    seconds: float,
    message: str,
) -> None:
    play_fork_server(monkeypatch, {"answer": answer})
    monkeypatch.setattr(settings, "RUN_DRIVER_START_SECONDS", seconds)
    run = submit(runs, "graph")
    assert run.plan is not None
    run.plan.options.parameters["learning_rate"] = parameter
    runs.start(run)
    assert (await ended(runs, run)).startswith(message)
    assert run.process is None
    while seconds < 1 and runs.fork_server.process is not None:  # one that hangs is killed
        await asyncio.sleep(0.01)
    runs.fork_server.stop()


@pytest.mark.parametrize(("deaths", "end"), [(2, "succeeded"), (3, "failed")])
async def test_a_driver_is_requested_again_when_the_fork_server_dies(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch, deaths: int, end: str
) -> None:
    """The first fork servers die with the request unanswered, the next one is a driver itself."""
    play_fork_server(monkeypatch, {"deaths": deaths, "folder": str(runs.store.folder("graph-1"))})
    run = submit(runs, "graph")
    runs.start(run)
    while run.is_active:
        await asyncio.wait_for(runs.changed.wait_for_change(runs.changed.count), 30)
    assert run.record.state.value == end
    assert run.machine.driver_requests == settings.RUN_FORK_SERVERS == 3
    runs.fork_server.stop()


def test_a_run_is_submitted_though_old_ones_cannot_be_removed(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> int:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(settings, "RUNS_KEPT", 0)
    monkeypatch.setattr(os, "fork", fail)
    runs.store.make_folder("old-1")
    assert submit(runs, "graph").is_active
    assert caplog.messages == [f"{runs.store.path}: cannot remove old runs: no more processes"]


@pytest.mark.parametrize("is_watched", [True, False])
async def test_followers_are_notified_of_each_write_and_of_the_end(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch, is_watched: bool
) -> None:
    """Without polling if the folder can be watched."""

    def refuse(events: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    if is_watched:
        monkeypatch.setattr(settings, "RUN_POLL_SECONDS", 3600.0)
    else:
        monkeypatch.setattr(event_loop, "Inotify", refuse)
    run = submit(runs, "pi")
    async with contextlib.aclosing(follow(runs, "pi-1")) as events:
        assert (await anext(events))["event"] == "run"
        for number in range(3):
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.05)
            assert not following.done()
            append_event(run.events, {"event": "progress", "done": number})
            assert await asyncio.wait_for(following, 30) == {"event": "progress", "done": number}
        following = asyncio.ensure_future(anext(events))
        runs.cancel("pi-1")
        last = await asyncio.wait_for(following, 30)
        assert (last["event"], last["state"]) == ("result", "cancelled")


async def test_the_first_stop_reason_is_kept(runs: RunManager) -> None:
    run = submit(runs, "graph", timeout=0.0)
    assert await ended(runs, run) == "graph-1 timed out after 0 s"
    runs.cancel("graph-1")
    runs.on_task_health([W0, W1], {W1: "one died"})
    assert run.record.state is RunState.FAILED
    assert run.record.error is not None
    assert run.record.error["exit_code"] == ExitCode.TIMED_OUT


async def test_a_lost_task_is_the_reason_even_if_the_driver_failed_first(runs: RunManager) -> None:
    run = submit(runs, "graph")
    run.machine = RunStateMachine(RunPhase.REQUESTED, driver_requests=1)
    append_event(run.events, ErrorEvent({"message": "Socket closed", "hint": "", "exit_code": 1}))
    runs._on_driver_message({"run": "graph-1", "pid": 1, "start_time": 1, "status": 256})
    runs.cancel("graph-1")
    assert run.machine.phase is RunPhase.FINALIZING
    assert run.record.stopping is None, "it has ended by itself"
    runs.on_task_health([W0, W1], {W1: "worker:1 died (SIGKILL)"})
    assert await ended(runs, run) == "worker:1 died (SIGKILL)\nafter that, Socket closed"


async def test_the_final_event_is_found_before_later_events_of_threads(runs: RunManager) -> None:
    run = submit(runs, "linear")
    error = {"message": "the loss is not finite", "hint": "", "exit_code": 1}
    append_event(run.events, ErrorEvent(error))
    append_event(run.events, {"event": "progress", "done": 1})
    with run.events.open("a") as file:
        file.write('{"event": "metr\n')
    assert final_record(run, run.output).error == error


async def test_a_run_ends_with_a_result_event_on_a_full_disk(runs: RunManager, monkeypatch: pytest.MonkeyPatch) -> None:
    run, write = submit(runs, "graph"), os.write

    def write_elsewhere(fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}") == str(run.events):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(os, "write", write_elsewhere)
    runs.fail(run, ClusterError("one died"))
    first, last = [each async for each in follow(runs, "graph-1")]
    assert first["event"] == "run"
    assert (last["event"], last["state"], last["error"]) == ("result", "failed", run.record.error)
    assert last["error"]["message"] == "one died"
    assert last["notes"] == [f"{run.events} cannot be written: No space left on device"]
    assert [each async for each in follow(next_agent(runs), "graph-1")] == [first, last]


async def test_a_run_ends_whose_folder_was_deleted(runs: RunManager) -> None:
    run = submit(runs, "graph")
    shutil.rmtree(run.folder)
    runs.cancel(run.id)
    await asyncio.wait_for(runs.cancel_all(), 30)
    assert run.record.state is RunState.CANCELLED


@pytest.mark.parametrize("detached", [True, False])
async def test_an_adopted_run_without_a_driver_waits_for_its_command(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch, detached: bool
) -> None:
    """Also if the next agent dies too."""
    submit(runs, "script", detached=detached)
    assert next_agent(runs).runs["script-1"].is_unstarted
    monkeypatch.setattr(settings, "RUN_OWNER_RECONNECT_SECONDS", 0.01)
    later = next_agent(runs)
    message = await ended(later, later.runs["script-1"])
    assert message == ("the agent of script-1 died before it had started" if detached else "None")
    again = next_agent(later)
    assert again.runs == {}, "it has ended"
    state = RunState.FAILED if detached else RunState.CANCELLED
    assert [record.state for record in await again.all_records()] == [state]


async def test_an_adopted_run_that_was_stopped_or_whose_upload_is_incomplete_is_finalized(runs: RunManager) -> None:
    run = submit(runs, "pi")
    runs.store.write(replace(run.record, options=replace(run.record.options, upload="/x", upload_name="x")))
    later = next_agent(runs)
    assert "(its agent died before the driver had started)" in await ended(later, later.runs["pi-1"])
    run = submit(runs, "graph")
    runs.store.write(replace(run.record, stopping=(RunState.CANCELLED, None)))
    later = next_agent(runs)
    await ended(later, later.runs["graph-1"])
    assert later.runs["graph-1"].record.state is RunState.CANCELLED


@pytest.fixture
def driver() -> Iterator[ProcessHandle]:
    """The driver that a run has from an earlier agent: some other process."""
    with running("sleep", "600") as process:
        found = ProcessHandle.from_pid(process.pid)
        assert found is not None
        yield found
        assert process.wait(30) in (-signal.SIGTERM, -signal.SIGKILL, 0), "0 where the agent reaped it"


@pytest.mark.parametrize(("detached", "comes_back"), [(False, False), (False, True), (True, False)])
async def test_an_adopted_run_is_cancelled_unless_it_is_detached_or_reclaimed(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch, driver: ProcessHandle, detached: bool, comes_back: bool
) -> None:
    monkeypatch.setattr(settings, "RUN_OWNER_RECONNECT_SECONDS", 0.01)
    submit(runs, "pi", detached=detached)
    assert acquire_run(runs.store.folder("pi-1"), driver)
    later = next_agent(runs)
    run = later.runs["pi-1"]
    assert (run.record.state, run.process) == (RunState.RUNNING, driver)
    if comes_back:
        run.orphan_timer.cancel()
    if detached or comes_back:
        assert run.orphan_timer.handle is None
        later.cancel("pi-1")
    else:
        assert run.orphan_timer.handle is not None
    await ended(later, run)
    assert run.record.state is RunState.CANCELLED
    assert cleared == ["pi-1"]


async def test_variables_are_cleared_after_the_end_of_a_run_and_by_the_next_agent_if_this_one_dies(
    runs: RunManager, driver: ProcessHandle
) -> None:
    """Its driver is killed; the first agent dies while the servers do not answer, and its memory with it."""

    async def never(container: str) -> None:
        await asyncio.Event().wait()

    submit(runs, "pi")
    assert acquire_run(runs.store.folder("pi-1"), driver)
    first = next_agent(runs, never)
    os.kill(driver.pid, signal.SIGKILL)
    await ended(first, first.runs["pi-1"])
    assert first.runs["pi-1"].record.state is RunState.FAILED, "its end does not wait for the servers"
    assert first.runs["pi-1"].record.has_variables
    for task in first._background.tasks.values():
        task.cancel()
    later = next_agent(runs)
    await asyncio.gather(*later._background.tasks.values())
    assert cleared == ["pi-1"]
    record = later.store.read("pi-1")
    assert record is not None
    assert (record.state, record.has_variables) == (RunState.FAILED, False)


class Servers:
    """Tasks a … d, and e on another host. `silent` do not answer; `replaced` is a new process after its question."""

    def __init__(self, silent: str, replaced: str = "") -> None:
        self.silent = silent
        self.replaced = replaced
        self.requests: list[str] = []
        self.recorded: list[tuple[str, str | None]] = []
        task = SimpleNamespace
        self.host = "here"
        hosts = zip("abcde", ["here"] * 4 + ["there"], strict=True)
        self.topology = task(tasks=[task(short=name, address=name, host=host) for name, host in hosts])
        self.tasks: dict[str, Any] = {
            name: task(spec=task(short=name, address=name), process=ProcessHandle(number, 1) if name != "d" else None)
            for number, name in enumerate("abcd")
        }
        self.history = SimpleNamespace(record=lambda event, task, detail: self.recorded.append((task, detail)))

    async def probe(self, address: str, timeout: float, *, clear: str) -> ProbeResult:
        self.requests.append(address)
        if address in self.replaced:
            self.tasks[address].process = ProcessHandle(100, 2)
        return ProbeResult(ProbeOutcome.SILENT if address in self.silent else ProbeOutcome.PROBE_OK)


@pytest.mark.parametrize(
    ("servers", "requests", "kept"),
    [
        (Servers(""), "abce", []),
        (Servers("b"), "abce" + "bb", [("b", "the server still holds the variables of pi-1")]),
        (Servers("e"), "abce" + "ee", [("e", "the server still holds the variables of pi-1")]),
        (Servers("bc", replaced="c"), "abce" + "bb", [("b", "the server still holds the variables of pi-1")]),
    ],
)
async def test_servers_are_retried_as_long_as_they_are_the_same_process(
    monkeypatch: pytest.MonkeyPatch, servers: Any, requests: str, kept: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(settings, "RUN_CLEANUP_BACKOFF_SECONDS", (0.0, 0.0))
    await ContainerCleaner(servers, servers).clear("pi-1")
    assert "".join(servers.requests) == requests
    assert servers.recorded == kept
