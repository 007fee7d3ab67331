"""How runs end that lose their tasks, their time, their agent or whoever waits for them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.conftest import running
from tfcluster.agent.folder import StateFolder
from tfcluster.agent.runs import lost_tasks
from tfcluster.agent.runs import runs as module
from tfcluster.agent.runs.ending import conclude
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.runs import Runs
from tfcluster.model.states import RunState
from tfcluster.process import ProcessId
from tfcluster.protocol.framing import encode
from tfcluster.runtime import fork_server
from tfcluster.runtime.driver import EVENTS, Job, claim
from tfcluster.runtime.events import EventLog

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
DEVICES = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in (0, 1)]


cleared: list[str] = []


async def clear(container: str) -> None:
    cleared.append(container)


async def look() -> None:
    """No task is elsewhere."""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    folder = StateFolder(tmp_path)
    folder.make()
    return Runs("title", folder, clear, look)


def submit(runs: Runs, program: str, timeout: float | None = None, detached: bool = False) -> Run:
    """A run that waits for its driver."""
    identity = f"{program}-1"
    cleared.clear()
    runs.records.make_folder(identity)
    folder = str(runs.records.folder(identity))
    addresses = {"ps": ["localhost:1"], "worker": ["localhost:2", "localhost:3"]}
    parameters = {"expression": "x = 1; y = x", "given": {}, "placed": {"y": "/job:ps"}} if program == "graph" else {}
    job = Job(identity, "demo", program, folder, addresses, "localhost:2", DEVICES, parameters, [])
    return runs.submit(job, timeout, detached)


async def ended(runs: Runs, run: Run) -> str:
    """Wait until a run has ended; what its last event says of why."""
    while run.active:
        await asyncio.wait_for(runs.changed.since(runs.changed.count), 30)
    kept = runs.records.read(run.identity)
    assert kept == run.record
    last = json.loads(run.events.read_text().splitlines()[-1])
    assert (last["event"], last["state"], last.get("error")) == ("result", run.state.value, run.record.error)
    return str((run.record.error or {}).get("message"))


def test_a_run_that_needs_its_tasks_fails_with_the_first(runs: Runs) -> None:
    async def body() -> None:
        run = submit(runs, "graph")
        runs.tasks_are([W0, W1], {})
        assert run.record.stopping is None
        runs.tasks_are([W0, W1], {W1: "worker:1 died (SIGKILL)"})
        assert await ended(runs, run) == "worker:1 died (SIGKILL) during graph-1"
        assert run.state is RunState.FAILED
        assert cleared == [], "it never had a driver"

    asyncio.run(body())


def test_a_run_that_was_placed_elsewhere_needs_that_task_too(runs: Runs, tmp_path: Path) -> None:
    async def body() -> None:
        run = submit(runs, "graph")
        assert runs.tasks_in_use([PS, W0, W1]) == {"graph-1": [PS, W0, W1]}
        later = Runs("title", StateFolder(tmp_path), clear, look)
        assert later.records.read("graph-1") == run.record, "the next agent knows"
        runs.tasks_are([PS, W0, W1], {PS: "ps:0 died (SIGKILL)"})
        assert await ended(runs, run) == "ps:0 died (SIGKILL) during graph-1"

    asyncio.run(body())


def test_a_run_that_sees_to_lost_tasks_fails_when_all_are_lost_for_a_while(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        run = submit(runs, "pi")
        runs.tasks_are([W0, W1], {W1: "one died"})
        assert run.stranded is None, "one is left"
        both = {W0: "zero died", W1: "one died"}
        runs.tasks_are([W0, W1], both)
        waiting = run.stranded
        assert waiting is not None
        runs.tasks_are([W0, W1], both)
        assert run.stranded is waiting, "the time runs from the first moment"
        runs.tasks_are([W0, W1], {W1: "one died"})
        assert waiting.cancelled(), "one is back"
        monkeypatch.setattr(lost_tasks, "_STRANDED_SECONDS", 0.0)
        runs.tasks_are([W0, W1], both)
        assert await ended(runs, run) == "zero died; one died during pi-1"

    asyncio.run(body())


def test_a_fork_server_that_hangs_costs_the_run_that_it_was_to_start(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(title: str, agent: int, log: Path, channel: socket.socket) -> None:
        signal.alarm(60)  # should nobody end it
        signal.pause()

    async def body() -> None:
        run = submit(runs, "graph")
        runs.start(run)
        message = "no driver could be started for graph-1 within 0.01 s"
        assert await ended(runs, run) == message
        assert runs.runs["graph-1"].process is None
        while runs._fork_server._child is not None:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(module, "_START_SECONDS", 0.01)
    monkeypatch.setattr(fork_server, "launch", hang)
    asyncio.run(body())


@pytest.mark.parametrize(("deaths", "end"), [(2, "succeeded"), (3, "failed")])
def test_a_run_whose_fork_server_dies_gets_its_driver_from_the_next_one(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, deaths: int, end: str
) -> None:
    """The fork servers are played: the first ones die with the request unanswered, the next one is a driver itself."""

    def launch(title: str, agent: int, log: Path, channel: socket.socket) -> None:
        channel.recv(1 << 16)
        with log.open("a") as file:
            file.write("x")
        if len(log.read_text()) <= deaths:
            os._exit(1)
        process = ProcessId.of(os.getpid())
        assert process is not None
        claim(runs.records.folder("graph-1"), process)
        EventLog(runs.records.folder("graph-1") / EVENTS).emit("result", seconds=1.0, result={})
        forked = {"run": "graph-1", "pid": process.pid, "start_time": process.start_time}
        channel.sendall(encode(forked) + encode({**forked, "status": 0}))
        signal.alarm(60)  # should nobody end it
        signal.pause()

    async def body() -> None:
        run = submit(runs, "graph")
        runs.start(run)
        while run.active:
            await asyncio.wait_for(runs.changed.since(runs.changed.count), 30)
        assert run.state.value == end
        assert run.fork_servers == module._FORK_SERVERS == 3
        runs.stop()

    monkeypatch.setattr(fork_server, "launch", launch)
    asyncio.run(body())


def test_the_first_reason_to_stop_stands(runs: Runs) -> None:
    async def body() -> None:
        run = submit(runs, "graph", timeout=0.0)
        assert await ended(runs, run) == "graph-1 timed out after 0 s"
        runs.cancel("graph-1")
        runs.tasks_are([W0, W1], {W1: "one died"})
        assert run.state is RunState.FAILED

    asyncio.run(body())


def test_a_driver_that_meets_a_lost_task_before_the_agent_does_ends_because_of_that(runs: Runs) -> None:
    async def body() -> None:
        run = submit(runs, "graph")
        EventLog(run.events).emit("error", error={"message": "Socket closed", "hint": "", "exit_code": 1})
        runs._heard({"run": "graph-1", "pid": 1, "start_time": 1, "status": 256})
        runs.cancel("graph-1")
        assert run.record.stopping is None, "it has ended by itself"
        runs.tasks_are([W0, W1], {W1: "worker:1 died (SIGKILL)"})
        assert await ended(runs, run) == "worker:1 died (SIGKILL) during graph-1"

    asyncio.run(body())


def test_what_a_driver_said_last_counts_though_its_threads_told_something_later(runs: Runs) -> None:
    async def body() -> None:
        run = submit(runs, "linear")
        error = {"message": "the loss is not finite", "hint": "", "exit_code": 1}
        log = EventLog(run.events)
        log.emit("error", error=error)
        log.emit("progress", done=1)
        with run.events.open("a") as file:
            file.write('{"event": "metr\n')
        assert conclude(run, 256, "", run.output).error == error

    asyncio.run(body())


def test_a_full_disk_costs_a_run_its_events_but_not_its_end(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(log: EventLog, event: str, **fields: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def body() -> None:
        run = submit(runs, "graph")
        monkeypatch.setattr(EventLog, "emit", full)
        runs.tasks_are([W0, W1], {W1: "one died"})
        first, last = [each async for each in runs.follow("graph-1")]
        assert first["event"] == "run"
        assert (last["event"], last["state"], last["error"]) == ("result", "failed", run.record.error)
        assert last["error"]["message"] == "one died during graph-1"
        assert last["notes"] == [f"{run.events} cannot be written: No space left on device"]
        later = Runs("title", StateFolder(runs.records.path.parent), clear, look)
        assert [each async for each in later.follow("graph-1")] == [first, last], "also the next agent knows"

    asyncio.run(body())


def test_a_run_without_a_driver_that_a_lost_agent_left_is_concluded_by_the_next(runs: Runs, tmp_path: Path) -> None:
    async def body() -> None:
        submit(runs, "pi")
        later = Runs("title", StateFolder(tmp_path), clear, look)
        later.adopt()
        assert "(its agent died before the driver had started)" in await ended(later, later.runs["pi-1"])
        again = Runs("title", StateFolder(tmp_path), clear, look)
        again.adopt()
        assert again.runs == {}, "it has ended"
        assert [record.state for record in again.all_records()] == [RunState.FAILED]

    asyncio.run(body())


@pytest.mark.parametrize(("detached", "comes_back"), [(False, False), (False, True), (True, False)])
def test_a_run_that_nobody_comes_back_to_is_cancelled_unless_it_is_detached(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detached: bool, comes_back: bool
) -> None:
    """The driver is some other process, as it is for the next agent."""

    async def body(driver: ProcessId) -> None:
        submit(runs, "pi", detached=detached)
        assert claim(runs.records.folder("pi-1"), driver)
        later = Runs("title", StateFolder(tmp_path), clear, look)
        later.adopt()
        run = later.runs["pi-1"]
        assert (run.state, run.process) == (RunState.RUNNING, driver)
        if comes_back:
            later.is_owned("pi-1")
        if detached or comes_back:
            assert run.unowned is None
            later.cancel("pi-1")
        else:
            assert run.unowned is not None
        await ended(later, run)
        assert run.state is RunState.CANCELLED
        assert cleared == ["pi-1"]

    monkeypatch.setattr(module, "_UNOWNED_SECONDS", 0.01)
    with running("sleep", "600") as process:
        found = ProcessId.of(process.pid)
        assert found is not None
        asyncio.run(body(found))
        assert process.wait(30) in (-signal.SIGTERM, 0), "0 where the agent reaped it"
