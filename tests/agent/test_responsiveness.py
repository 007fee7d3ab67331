"""What takes long keeps the agent's event loop free, so that it can answer other requests."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.hosts import task_of, topology_of
from tests.agent.test_log_handlers import Cluster, ask
from tests.agent.test_run_store import RECORD, keep
from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.agent.handlers import access, files
from tfcluster.agent.handlers.files import CodeStore, list_files
from tfcluster.agent.handlers.runs import RunHandlers
from tfcluster.agent.logs import sorted_lines
from tfcluster.agent.logs.log_reader import RotatedLog
from tfcluster.agent.runs import waits
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.runs.stacks import find_processes
from tfcluster.core.code import CodeFile, decode_manifest, encode_manifest
from tfcluster.core.states import RunState, TaskState
from tfcluster.os import procfs
from tfcluster.processes.logs import log_buffer
from tfcluster.processes.logs.rotating_log import RotatingLog, parse
from tfcluster.processes.probes import trace_file
from tfcluster.processes.runs.run_plan import FILES, OUTPUT
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.files import OutputFiles, OutputsRequest
from tfcluster.protocol.api.processes import ProfileRequest, TracePart
from tfcluster.protocol.api.runs import RunsRequest


def blocked_until(path: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that waits for a file first; it never returns if the event loop waits too."""

    def wait_first(*arguments: Any, **more: Any) -> Any:
        path.with_name("begun").touch()
        wait_for(path.exists)
        return function(*arguments, **more)

    return wait_first


async def while_running(path: Path, work: Awaitable[Any]) -> Any:
    """Wait for work that takes until the event loop has made a file."""
    task = asyncio.ensure_future(work)
    while not path.with_name("begun").exists():
        await asyncio.sleep(0.01)
    path.touch()
    return await task


async def test_files_of_a_script_and_connections_of_the_host_are_listed_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one" / "free", tmp_path / "other" / "free"
    for path in (one, other):
        path.parent.mkdir()
    monkeypatch.setattr(files, "decode_manifest", blocked_until(one, decode_manifest))
    (tmp_path / "tree").write_bytes(encode_manifest([CodeFile("train.py", 5, digest="0" * 64)]))
    assert await while_running(one, files._find_missing(CodeStore(tmp_path), "tree")) == {"0" * 64: 5}
    monkeypatch.setattr(waits, "connected_ports", blocked_until(other, lambda pid: set()))
    topology = topology_of([task_of("worker:0", "a")])
    assert await while_running(other, waits._is_connected(os.getpid(), topology)) is False


async def count_turns(response: AsyncIterator[Any]) -> tuple[list[Any], int]:
    """Return what a handler answers, and how often the event loop did something else before the end."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(take_turns())
    answers = [each async for each in response]
    other.cancel()
    return answers, turns


async def once(work: Awaitable[Any]) -> AsyncIterator[Any]:
    """The result of some work as the only answer."""
    yield await work


async def test_the_files_of_a_large_folder_are_listed_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CODE_FILES_PER_TURN", 2)
    (tmp_path / FILES / "below").mkdir(parents=True)
    names = [f"{number:02}" for number in range(10)]
    for name in (*names, "below/last"):
        (tmp_path / FILES / name).touch()
    store: Any = SimpleNamespace(find=lambda run: run, folder=lambda run: tmp_path)
    answers, turns = await count_turns(list_files(store, OutputsRequest("script-1")))
    paths = [file.path for answer in answers if isinstance(answer, OutputFiles) for file in answer.files]
    assert paths == [*names, "below/last"]
    assert turns >= 10, "one for every two names, and one for every two files"


async def test_traces_are_sent_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def capture(title: str, function: Any, *more: Any) -> Any:
        trace = trace_file(function.args[1], "worker:0")
        trace.parent.mkdir()
        trace.write_bytes(bytes(10))
        return {"idle": [], "failures": {}}

    monkeypatch.setattr(settings, "PROFILE_PART_BYTES", 2)
    monkeypatch.setattr(access, "run_in_child", capture)
    task = task_of("worker:0", "a")
    tasks = {task.name: SimpleNamespace(machine=SimpleNamespace(state=TaskState.READY))}
    supervisor = SimpleNamespace(require_cluster=lambda: topology_of([task]), tasks=tasks)
    state_dir = SimpleNamespace(profiles=tmp_path / "profiles")
    network = SimpleNamespace(enter=None)
    context: Any = SimpleNamespace(supervisor=supervisor, host="a", state_dir=state_dir, network=network)
    request = ProfileRequest(("worker:0",), 1.0)
    answers, turns = await count_turns(access.profile(context, request))
    parts = [base64.b64decode(each.data) for each in answers if isinstance(each, TracePart)]
    assert parts == [bytes(2)] * 5
    assert turns >= 5


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in turns has its turn for one step only, however fast the machine is."""
    monkeypatch.setattr(settings, "TURN_SECONDS", 0.0)


async def test_the_start_of_the_cluster_is_found_without_parsing_all_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path / "demo" / "localhost", "ps:0")
    log = RotatingLog(cluster.folder.events, settings.EVENT_LOG_FILE_BYTES, settings.EVENT_LOG_FILES)
    position = 0
    for number in range(30):
        name = "up" if number == 1 else "ready"
        data = b'{"time":%d,"event":"%s","task":"ps:0","detail":"%s"}\n' % (number, name.encode(), bytes(40)) * 1000
        log.append(data, position, 1000.0 + number)
        position += len(data)
    RotatingLog(cluster.folder.log_of("ps:0"), 1000, 2).append(b"before\n", 0, 1000.0)
    RotatingLog(cluster.folder.log_of("ps:0"), 1000, 2).append(b"after\n", 7, 1001.0)
    parsed = 0

    def count(line: bytes) -> Any:
        nonlocal parsed
        parsed += 1
        return parse(line)

    monkeypatch.setattr(sorted_lines, "parse", count)

    assert (await ask(cluster))[1] == [("ps:0", "after")]
    assert parsed < 300, "of 30,000 lines"


async def test_the_last_lines_of_a_run_are_found_without_reading_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path / "demo" / "localhost", "ps:0")
    folder = cluster.folder.runs / "script-1"
    folder.mkdir()
    (folder / OUTPUT).write_bytes(b"".join(b"line %06d\n" % number for number in range(500_000)))
    read = 0

    def count(path: Path, position: int, size: int) -> Any:
        nonlocal read
        read += size
        return read_buffer(path, position, size)

    read_buffer = log_buffer.read
    monkeypatch.setattr(log_buffer, "read", count)

    _, lines = await ask(cluster, "script-1", lines=2)
    assert [line for _, line in lines] == ["line 499998", "line 499999"]
    assert read < 3 * settings.IO_BLOCK_BYTES, "of 6 MB"


@pytest.mark.usefixtures("short_turns")
async def test_the_beginning_of_very_many_last_lines_is_found_in_turns(tmp_path: Path) -> None:
    path = tmp_path / "log"
    RotatingLog(path, 10**7, 2).append((b"x" * 99 + b"\n") * 20_000, 0, 1000.0)
    search = RotatedLog(path).start_of_last(19_000, 2_000_000, partial=True)
    (start,), turns = await count_turns(once(search))
    assert start == 100_000
    assert turns >= 1_900_000 // settings.IO_BLOCK_BYTES, "one for each block"


@pytest.mark.usefixtures("short_turns")
async def test_runs_are_listed_in_turns(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "demo" / "localhost")

    async def nothing(container: str = "") -> None:
        return None

    async def check() -> dict[str, str]:
        return {}

    runs = RunManager("title", cluster.folder, nothing, check)
    keep(runs.store, *(replace(RECORD, run=f"pi-{number:04}", state=RunState.SUCCEEDED) for number in range(50)))
    context: Any = SimpleNamespace(supervisor=None, runs=runs)
    (reply,), turns = await count_turns(RunHandlers(context).runs(RunsRequest(None)))
    assert isinstance(reply, Reply)
    assert len(reply.value.runs) == 50
    assert turns >= 100, "one for each record, and one for the output of each"


@pytest.mark.usefixtures("short_turns")
async def test_the_processes_of_a_run_are_searched_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "open_files", lambda pid: iter(["/dev/null"] * 3))
    monkeypatch.setattr(procfs, "children", lambda pid: [pid + 1] if pid < 100 else [])
    driver: Any = SimpleNamespace(pid=1, is_alive=lambda: True)
    found, turns = await count_turns(once(find_processes(driver, tmp_path, forked=True)))
    assert found == [[]]
    assert turns >= 300, "one for each descriptor"
