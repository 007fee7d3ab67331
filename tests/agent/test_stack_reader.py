"""The processes of one run write their stacks one at a time; those of other runs do not wait for them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tfcluster.agent.runs import stacks
from tfcluster.agent.runs.stacks import StackReader


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
