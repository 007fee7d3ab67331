"""The processes of one run write their stacks one at a time, and those of other runs do not wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, running, wait_for
from tfcluster import settings
from tfcluster.agent.runs.stacks import StackReader, find_processes
from tfcluster.os import procfs
from tfcluster.processes.runs.run_plan import STACKS


async def test_of_very_many_processes_only_some_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looked_at: list[int] = []

    def open_files(pid: int) -> Iterator[str]:
        looked_at.append(pid)
        return iter([str(tmp_path / STACKS)] if pid == 2 else [])

    monkeypatch.setattr(procfs, "open_files", open_files)
    monkeypatch.setattr(procfs, "children", lambda pid: [pid * 2, pid * 2 + 1] if pid < 10_000 else [])
    driver: Any = type("Driver", (), {"pid": 1, "is_alive": lambda self: True})()
    assert await find_processes(driver, tmp_path, forked=True) == [2]
    assert looked_at == list(range(1, settings.STACK_SEARCH_MAX + 1))


BEGIN = """
import os, signal, sys, threading
from pathlib import Path
from tfcluster.processes.runs.program_process import enable_stack_dump
enable_stack_dump(Path(sys.argv[1]))
"""


@contextlib.contextmanager
def program(body: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program whose stacks can be read, with pipes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with running(sys.executable, "-c", BEGIN + body, str(folder), **pipes, cwd=ROOT) as process:
        yield process


#: A main thread that runs without a pause, and threads that wait.
BUSY = """
def wait():
    threading.Event().wait()

for _ in range(2):
    threading.Thread(target=wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
print("on", flush=True)
while True:
    pass
"""


#: Waits until it may end.
IDLE = "print('ready', flush=True)\nsys.stdin.readline()\n"


async def test_only_the_processes_of_one_run_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that computes is waited for until it pauses, or exits."""
    monkeypatch.setattr(settings, "STACK_PAUSE_SECONDS", 600.0)
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    computing = "print('ready', flush=True)\nwhile True: pass\n"
    with program(computing, one) as busy, program(IDLE, one) as idle, program(IDLE, other) as stranger:
        for process in (busy, idle, stranger):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        wait_for(lambda: all("read" in procfs.waits_in(each.pid, each.pid) for each in (idle, stranger)))
        reader = StackReader()
        first = asyncio.ensure_future(reader.read(busy.pid, one, running=True))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(reader.read(idle.pid, one))
        assert len((await reader.read(stranger.pid, other)).threads) == 1
        assert not first.done()
        assert not second.done()
        busy.kill()
        await first
        assert len((await second).threads) == 1


def test_a_thread_that_runs_is_asked_only_for_a_user(tmp_path: Path) -> None:
    """While it enters a function, its interpreter may crash at the signal."""
    with program(BUSY, tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        reader = StackReader()
        assert process.stdout.readline() == "ready\n"
        # A thread that has just begun runs for a moment.
        waiting = wait_for(lambda: len((read := asyncio.run(reader.read(process.pid, tmp_path))).threads) == 3 and read)
        assert [[frame.function for frame in each.frames][-2:] for each in waiting.threads[1:]] == [
            ["_bootstrap_inner", "_bootstrap"]
        ] * 2
        assert all("wait" in [frame.function for frame in each.frames] for each in waiting.threads[1:])
        assert len(asyncio.run(reader.read(process.pid, tmp_path, main_only=True)).threads) == 1
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "on\n"
        computing = wait_for(lambda: (found := asyncio.run(reader.read(process.pid, tmp_path))).problem and found)
        assert (computing.threads, computing.problem) == ((), "its main thread computes")
        shown = asyncio.run(reader.read(process.pid, tmp_path, running=True)).threads
        assert [each.frames[0].function for each in shown] == ["<module>", "wait", "wait"]


async def test_a_main_thread_that_blocks_the_signal_is_named(tmp_path: Path) -> None:
    block = f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(settings.STACK_SIGNAL)}])\n"
    with program(f"{block}print('ready', flush=True)\nsys.stdin.readline()\n", tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = await StackReader().read(process.pid, tmp_path, running=True)
        assert (found.threads, found.problem) == ((), "its main thread blocks SIGURG")


async def test_a_write_is_not_interrupted(tmp_path: Path) -> None:
    """More than a pipe holds, without a buffer."""
    with program('os.write(2, b"%d" % os.write(1, bytes(200_000)))\n', tmp_path) as process:
        wait_for(lambda: "write" in Path(f"/proc/{process.pid}/wchan").read_text())
        found = await StackReader().read(process.pid, tmp_path, running=True)
        assert (found.threads, found.problem) == ((), "its main thread waits until its output is read")
        assert process.communicate(timeout=60)[1] == "200000"


async def test_a_process_that_executes_another_program_after_the_look_lives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a handler, the signal must not end it: no look can rule that out."""
    read_status = procfs.read_status
    monkeypatch.setattr(procfs, "read_status", lambda *ids: read_status(*ids) | {"SigCgt": "f" * 16})
    monkeypatch.setattr(procfs, "open_files", lambda pid: iter([str(tmp_path / STACKS)]))
    (tmp_path / STACKS).touch()
    with running("sleep", "60") as process:
        wait_for(lambda: "sleep" in procfs.waits_in(process.pid, process.pid))
        found = await StackReader().read(process.pid, tmp_path, running=True)
        assert (found.threads, found.problem) == ((), "it has written no stacks; the disk might be full")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
