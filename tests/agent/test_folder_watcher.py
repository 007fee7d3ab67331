"""Which folders' changes are reported, to whom, and that nothing is left open afterwards."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tfcluster.agent import folder_watcher
from tfcluster.agent.folder_watcher import FolderWatcher


def test_each_callback_is_called_for_its_own_folder_while_it_watches(tmp_path: Path) -> None:
    async def body() -> None:
        watcher = FolderWatcher()
        calls: list[str] = []
        changed = asyncio.Event()

        def callback(name: str) -> None:
            calls.append(name)
            changed.set()

        async def write(folder: str) -> list[str]:
            """Write to a file twice, in its creation and afterwards, and return the callbacks of it."""
            calls.clear()
            changed.clear()
            with (tmp_path / folder / "file").open("a") as file:
                file.write("x")
            await asyncio.wait_for(changed.wait(), 30)
            return sorted(set(calls))

        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        before = os.listdir("/proc/self/fd")
        with (
            watcher.watch(tmp_path / "a", lambda: callback("a")) as is_watched,
            watcher.watch(tmp_path / "b", lambda: callback("b")),
        ):
            assert is_watched
            with watcher.watch(tmp_path / "a", lambda: callback("a too")):
                assert await write("a") == ["a", "a too"]
                assert await write("b") == ["b"]
            assert await write("a") == ["a"], "one of the two is left"
        assert os.listdir("/proc/self/fd") == before
        with watcher.watch(tmp_path / "b", lambda: callback("again")):
            assert await write("b") == ["again"]

    asyncio.run(body())


def test_a_folder_that_cannot_be_watched_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    async def body() -> None:
        before = os.listdir("/proc/self/fd")
        with FolderWatcher().watch(tmp_path / "none", lambda: None) as is_watched:
            assert not is_watched
        monkeypatch.setattr(folder_watcher, "Inotify", refuse)
        with FolderWatcher().watch(tmp_path, lambda: None) as is_watched:
            assert not is_watched
        assert os.listdir("/proc/self/fd") == before

    asyncio.run(body())
