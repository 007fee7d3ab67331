"""What takes long keeps the agent's event loop free, so that it answers other requests meanwhile."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.hosts import task_of, topology_of
from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.agent.handlers import files, profile
from tfcluster.agent.handlers.files import list_files
from tfcluster.agent.runs import diagnosis
from tfcluster.agent.state import code_store
from tfcluster.agent.state.code_store import CodeStore
from tfcluster.core.code import CodeFile, decode_manifest, encode_manifest
from tfcluster.core.states import TaskState
from tfcluster.processes.profiler import trace_file
from tfcluster.processes.runs.run_plan import FILES
from tfcluster.protocol.api.outputs import OutputFiles, OutputsRequest
from tfcluster.protocol.api.profile import ProfileRequest, TracePart


def blocked_until(path: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that waits for a file before it does its work: for ever, if the event loop waits with it."""

    def wait_first(*arguments: Any, **more: Any) -> Any:
        path.with_name("begun").touch()
        wait_for(path.exists)
        return function(*arguments, **more)

    return wait_first


async def meanwhile(path: Path, work: Awaitable[Any]) -> Any:
    """Wait for work that takes until the event loop has made a file."""
    task = asyncio.ensure_future(work)
    while not path.with_name("begun").exists():
        await asyncio.sleep(0.01)
    path.touch()
    return await task


def test_the_list_of_the_files_of_a_script_is_read_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = tmp_path / "free"
    monkeypatch.setattr(code_store, "decode_manifest", blocked_until(free, decode_manifest))
    (tmp_path / "tree").write_bytes(encode_manifest([CodeFile("train.py", 5, digest="0" * 64)]))
    found = asyncio.run(meanwhile(free, files._find_missing(CodeStore(tmp_path), "tree")))
    assert found == {"0" * 64: 5}


def test_the_connections_of_the_host_are_listed_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = tmp_path / "free"
    monkeypatch.setattr(diagnosis, "connected_ports", blocked_until(free, lambda pid: set()))
    topology = topology_of([task_of("worker:0", "a")])
    assert asyncio.run(meanwhile(free, diagnosis._is_connected(os.getpid(), topology))) is False


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


def test_the_files_of_a_large_folder_are_listed_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CODE_FILES_PER_TURN", 2)
    (tmp_path / FILES / "below").mkdir(parents=True)
    names = [f"{number:02}" for number in range(10)]
    for name in (*names, "below/last"):
        (tmp_path / FILES / name).touch()
    store: Any = SimpleNamespace(find=lambda run: run, folder=lambda run: tmp_path)
    answers, turns = asyncio.run(count_turns(list_files(store, OutputsRequest("script-1"))))
    paths = [file.path for answer in answers if isinstance(answer, OutputFiles) for file in answer.files]
    assert paths == [*names, "below/last"]
    assert turns >= 10, "one for every two names, and one for every two files"


def test_traces_are_sent_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def capture(title: str, function: Any, *more: Any) -> Any:
        trace = trace_file(function.args[1], "worker:0")
        trace.parent.mkdir()
        trace.write_bytes(bytes(10))
        return {"idle": [], "failures": {}}

    monkeypatch.setattr(settings, "PROFILE_PART_BYTES", 2)
    monkeypatch.setattr(profile, "run_in_child", capture)
    task = task_of("worker:0", "a")
    tasks = {task.name: SimpleNamespace(machine=SimpleNamespace(state=TaskState.READY))}
    supervisor = SimpleNamespace(require_cluster=lambda: topology_of([task]), tasks=tasks)
    state_dir = SimpleNamespace(profiles=tmp_path / "profiles")
    network = SimpleNamespace(enter=None)
    context: Any = SimpleNamespace(supervisor=supervisor, host="a", state_dir=state_dir, network=network)
    request = ProfileRequest(("worker:0",), 1.0)
    answers, turns = asyncio.run(count_turns(profile.profile(context, request)))
    parts = [base64.b64decode(each.data) for each in answers if isinstance(each, TracePart)]
    assert parts == [bytes(2)] * 5
    assert turns >= 5
