"""The event loop: waiters see each change, and callbacks those of their folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.descriptors import held_by
from tfcluster.agent import event_loop
from tfcluster.agent.event_loop import ChangeNotifier, FolderWatcher


async def test_a_change_wakes_every_waiter_once_also_one_that_has_read_before_it() -> None:
    notifier = ChangeNotifier()
    count = notifier.count
    waiting = [asyncio.ensure_future(notifier.wait_for_change(count)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    notifier.notify()
    await asyncio.wait_for(asyncio.gather(*waiting, notifier.wait_for_change(count)), 10)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(notifier.wait_for_change(notifier.count), 0)


async def test_a_stream_until_completion_yields_each_change() -> None:
    notifier, loop, tasks = ChangeNotifier(), asyncio.get_running_loop(), asyncio.all_tasks()
    done, counts = loop.create_future(), []
    async for _ in notifier.stream_until(done, 0.0):
        counts.append(notifier.count)
        if len(counts) == 1:
            notifier.notify()  # during the read
        elif len(counts) == 2:
            loop.call_soon(notifier.notify)
        else:
            loop.call_soon(done.set_result, None)
    await asyncio.sleep(0)  # what was cancelled ends
    assert (counts, asyncio.all_tasks()) == ([0, 1, 2], tasks)


async def test_changes_within_the_interval_of_a_stream_are_one() -> None:
    notifier, loop = ChangeNotifier(), asyncio.get_running_loop()
    done, counts = loop.create_future(), []
    async for _ in notifier.stream_until(done, 0.05):
        counts.append(notifier.count)
        if len(counts) == 1:
            for delay in (0.0, 0.001, 0.002):
                loop.call_later(delay, notifier.notify)
        else:
            loop.call_soon(done.set_result, None)
    assert counts == [0, 3]


def watching() -> int:
    """Return how many descriptors of this process watch folders; what earlier tests have left may end at any time."""
    return held_by(os.getpid()).count("anon_inode:inotify")


async def test_each_callback_is_called_for_its_own_folder_while_it_watches(tmp_path: Path) -> None:
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
    before = watching()
    with (
        watcher.watch(tmp_path / "a", lambda: callback("a")) as is_watched,
        watcher.watch(tmp_path / "b", lambda: callback("b")),
    ):
        assert is_watched
        with watcher.watch(tmp_path / "a", lambda: callback("a too")):
            assert await write("a") == ["a", "a too"]
            assert await write("b") == ["b"]
        assert await write("a") == ["a"], "one of the two is left"
    assert watching() <= before
    with watcher.watch(tmp_path / "b", lambda: callback("again")):
        assert await write("b") == ["again"]


async def test_a_change_is_reported_though_too_many_others_were_not_read(tmp_path: Path) -> None:
    """The kernel then drops events; consecutive ones of the same file are one event."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    watcher, quiet = FolderWatcher(), asyncio.Event()
    for name in ("busy", "quiet"):
        (tmp_path / name).mkdir()
    with (
        watcher.watch(tmp_path / "busy", lambda: None),
        watcher.watch(tmp_path / "quiet", quiet.set),
        (tmp_path / "busy" / "one").open("wb", 0) as one,
        (tmp_path / "busy" / "two").open("wb", 0) as two,
    ):
        for _ in range(limit // 2 + 1):
            one.write(b".")
            two.write(b".")
        (tmp_path / "quiet" / "file").write_bytes(b".")
        await asyncio.wait_for(quiet.wait(), 30)


async def test_a_folder_that_cannot_be_watched_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(events: int) -> None:
        raise OSError(24, "Too many open files")

    before = watching()
    with FolderWatcher().watch(tmp_path / "none", lambda: None) as is_watched:
        assert not is_watched
    monkeypatch.setattr(event_loop, "Inotify", refuse)
    with FolderWatcher().watch(tmp_path, lambda: None) as is_watched:
        assert not is_watched
    assert watching() <= before
