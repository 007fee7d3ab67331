"""What takes long keeps the agent's event loop free, so that it can answer other requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Iterator
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
from tfcluster.agent.logs.log_reader import RotatedLog
from tfcluster.agent.runs import waits
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.runs.stacks import find_processes
from tfcluster.core.code import CodeFile, encode_manifest
from tfcluster.core.states import RunState
from tfcluster.os import procfs
from tfcluster.processes.logs.rotating_log import RotatingLog
from tfcluster.processes.runs.run_plan import FILES, OUTPUT
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.files import OutputFiles, OutputsRequest
from tfcluster.protocol.api.processes import TracePart
from tfcluster.protocol.api.runs import RunsRequest


@pytest.mark.timeout(60)  # it fails by waiting
async def test_files_of_a_script_are_listed_elsewhere(tmp_path: Path) -> None:
    """The list of files is a pipe, which nothing can be read from until the event loop has written it."""
    os.mkfifo(tmp_path / "tree")
    listing = asyncio.ensure_future(files._find_missing(CodeStore(tmp_path), "tree"))
    writing = None
    while writing is None:
        await asyncio.sleep(0.01)
        with contextlib.suppress(OSError):  # the reader has not opened it yet
            writing = os.open(tmp_path / "tree", os.O_WRONLY | os.O_NONBLOCK)
    with open(writing, "wb") as pipe:
        pipe.write(encode_manifest([CodeFile("train.py", 5, digest="0" * 64)]))
    assert await listing == {"0" * 64: 5}


@pytest.mark.timeout(60)  # it fails by waiting
async def test_connections_of_a_program_are_listed_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_late(pid: int) -> Iterator[str]:
        (tmp_path / "begun").touch()
        wait_for((tmp_path / "may end").exists)
        return iter(())

    monkeypatch.setattr(procfs, "open_files", list_late)
    listing = asyncio.ensure_future(waits._is_connected(os.getpid(), topology_of([task_of("worker:0", "a")])))
    while not (tmp_path / "begun").exists():
        await asyncio.sleep(0.01)
    (tmp_path / "may end").touch()
    assert await listing is False


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


async def test_a_trace_is_sent_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PROFILE_PART_BYTES", 2)
    (tmp_path / "trace").write_bytes(bytes(10))
    parts, turns = await count_turns(access.read_trace(tmp_path / "trace", "worker:0"))
    assert parts == [TracePart("worker:0", base64.b64encode(bytes(2)).decode())] * 5
    assert turns >= 5


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in turns has its turn for one step only, however fast the machine is."""
    monkeypatch.setattr(settings, "TURN_SECONDS", 0.0)


async def test_the_start_of_the_cluster_is_found_in_earlier_files_of_the_events(tmp_path: Path) -> None:
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
    assert (await ask(cluster))[1] == [("ps:0", "after")]


def read_bytes() -> int:
    """Return how much this process has read, of whatever files."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


async def test_the_last_lines_of_a_run_are_found_without_reading_all_of_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "demo" / "localhost", "ps:0")
    folder = cluster.folder.runs / "script-1"
    folder.mkdir()
    (folder / OUTPUT).write_bytes(b"".join(b"line %06d\n" % number for number in range(500_000)))
    before = read_bytes()
    _, lines = await ask(cluster, "script-1", lines=2)
    assert read_bytes() - before < 3 * settings.IO_BLOCK_BYTES, "of 6 MB"
    assert [line for _, line in lines] == ["line 499998", "line 499999"]


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
