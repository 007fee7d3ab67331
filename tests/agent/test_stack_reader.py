"""The processes of one run write their stacks one at a time, and those of other runs do not wait for them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.agent.runs import stacks
from tfcluster.agent.runs.stacks import StackReader, find_processes


def test_only_the_processes_of_one_run_wait_for_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    async def read_three() -> None:
        blocked = asyncio.Event()

        async def write_stacks(pid: int, pidfd: int, path: Path) -> tuple[str, str]:
            asked.append(path.parent.name)
            if path.parent.name == "blocks":
                await blocked.wait()
            return "", ""

        monkeypatch.setattr(stacks, "_write_stacks", write_stacks)
        reader = StackReader()
        waiting = [asyncio.ensure_future(reader.read(os.getpid(), tmp_path / "blocks")) for _ in range(2)]
        await asyncio.sleep(0)
        await reader.read(os.getpid(), tmp_path / "other")
        assert asked == ["blocks", "other"]
        blocked.set()
        await asyncio.gather(*waiting)
        assert asked == ["blocks", "other", "blocks"]

    asyncio.run(asyncio.wait_for(read_three(), 60))


def test_of_very_many_processes_only_some_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looked_at: list[int] = []

    def has_open(pid: int, path: str) -> bool:
        looked_at.append(pid)
        return pid == 2

    monkeypatch.setattr(stacks, "_has_open", has_open)
    monkeypatch.setattr(stacks, "_children", lambda pid: [pid * 2, pid * 2 + 1] if pid < 10_000 else [])
    driver: Any = type("Driver", (), {"pid": 1, "is_alive": lambda self: True})()
    assert find_processes(driver, tmp_path, forked=True) == [2]
    assert looked_at == list(range(1, settings.STACK_SEARCH_MAX + 1))
