"""Which processes of a run are looked at for what they wait for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.agent.runs import waits
from tfcluster.agent.runs.waits import WaitMonitor
from tfcluster.core.groups import MemberObservation
from tfcluster.core.programs import ProgramTraits
from tfcluster.core.runs import RunOptions
from tfcluster.core.stacks import Wait
from tfcluster.processes.groups.member_states import read_observations


def monitor_of_a_run(members: int | None) -> Any:
    group = None if members is None else SimpleNamespace(on=lambda host: range(members))
    options = RunOptions("script", ProgramTraits(is_script=True), {})
    record = SimpleNamespace(options=options, stopping=None, is_part=False)
    run: Any = SimpleNamespace(
        id="script-1",
        is_active=True,
        has_exited=False,
        process=object(),
        folder=Path(),
        down=frozenset(),
        record=record,
        plan=SimpleNamespace(group=group, host="localhost"),
    )
    runs, none, supervisor = SimpleNamespace(runs={run.id: run}), SimpleNamespace(), SimpleNamespace(tasks={})
    return WaitMonitor("demo", supervisor, none, runs, none)  # type: ignore[arg-type]


async def check(monitor: Any) -> None:
    monitor.schedule_checks()
    await asyncio.gather(*monitor._checks.tasks.values())


async def find_own_process(driver: Any, folder: Path, *, forked: bool) -> list[int]:
    return [os.getpid()]


@pytest.mark.parametrize("members", [None, 2])
async def test_members_that_start_later_are_looked_at_too(monkeypatch: pytest.MonkeyPatch, members: int | None) -> None:
    """This process is the first program; its parent starts later, as another member of a group."""
    started = [os.getpid()]
    searches: list[int] = []

    async def find_processes(driver: Any, folder: Path, *, forked: bool) -> list[int]:
        searches.append(len(started))
        return list(started)

    monkeypatch.setattr(waits, "find_processes", find_processes)
    monitor = monitor_of_a_run(members)
    looked_at: list[int] = []

    async def check_program(run: Any, pid: int, program: Any, tasks_are_idle: bool) -> None:
        looked_at.append(pid)

    monkeypatch.setattr(monitor, "_check_program", check_program)

    await check(monitor)
    started.append(os.getppid())
    await check(monitor)
    await check(monitor)
    every = [os.getpid(), os.getppid()] if members else [os.getpid()]
    assert looked_at == [os.getpid(), *every, *every]
    assert searches == ([1, 2] if members else [1])


async def test_a_check_that_fails_is_in_the_log_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def find_processes(driver: Any, folder: Path, *, forked: bool) -> list[int]:
        raise ValueError("unforeseen")

    monkeypatch.setattr(waits, "find_processes", find_processes)
    monitor = monitor_of_a_run(None)
    await check(monitor)
    await check(monitor)
    (record,) = caplog.records
    assert record.getMessage().startswith("script-1 cannot be checked for waits: Traceback")
    assert record.getMessage().endswith("ValueError: unforeseen")


async def test_what_a_host_sees_of_its_members_is_written_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(waits, "find_processes", find_own_process)
    monitor = monitor_of_a_run(1)
    (run,) = monitor._runs.runs.values()
    run.folder, run.record.is_part = tmp_path, True
    found = Wait("Session.run", True, "train.py", 12, "main")

    async def check_program(run: Any, pid: int, program: Any, tasks_are_idle: bool) -> None:
        program.wait = found

    monkeypatch.setattr(monitor, "_check_program", check_program)
    await check(monitor)
    assert read_observations(tmp_path) == {os.getpid(): MemberObservation(found)}


async def test_a_program_that_goes_on_while_its_stack_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits elsewhere before it is seen how often it has waited, and never again after that."""
    counts = [7, 9, 9, 10]  # before and after the first read, in which it goes on, and the second one
    monkeypatch.setattr(waits, "find_processes", find_own_process)
    monkeypatch.setattr(waits, "count_switches", lambda pid: counts.pop(0) if counts else 10)
    monkeypatch.setattr(waits, "find_wait", lambda threads: threads[0])
    monkeypatch.setattr(waits, "write_observations", lambda folder, seen: None)
    monkeypatch.setattr(settings, "WAIT_CPU_MAX_PERCENT", 1e6)
    waiting = Wait("Session.run", True, "train.py", 12, "main")
    reads = [None, waiting]

    async def read(pid: int, folder: Path, *, main_only: bool = False) -> Any:
        return SimpleNamespace(threads=[reads.pop(0) if main_only else None], problem="")

    monitor = monitor_of_a_run(None)
    monitor._stacks = SimpleNamespace(read=read)
    (run,) = monitor._runs.runs.values()
    run.record.is_part = True

    seen = []
    for _ in range(5):
        await check(monitor)
        seen.append(monitor._programs[run.id][os.getpid()].wait)
    assert seen == [None, None, waiting, waiting, waiting]
    assert reads == [], "it is not asked any more"
