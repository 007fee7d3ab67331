"""Mechanisms for the agent's event loop: timers, long work in turns, and notification of changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.os.files import IN_MODIFY, OVERFLOW, Inotify


async def wait_for_first(*awaitables: Awaitable[object]) -> None:
    """Wait until one of several awaitables is done, and cancel the others."""
    pending = [asyncio.ensure_future(each) for each in awaitables]
    try:
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in pending:
            each.cancel()


class Timer:
    """Calls a function after some time, unless it is set again or cancelled before."""

    def __init__(self) -> None:
        self.handle: asyncio.TimerHandle | None = None  # None if it is not set

    def set(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in some seconds."""
        self.cancel()
        self.handle = asyncio.get_running_loop().call_later(seconds, function, *arguments)

    def cancel(self) -> None:
        """Do not call the function, if it was not called yet."""
        if self.handle is not None:
            self.handle.cancel()
        self.handle = None


class BackgroundTasks:
    """Runs coroutines in the background, one at a time for each key; asyncio itself refers to them only weakly."""

    def __init__(self) -> None:
        self.tasks: dict[object, asyncio.Task[object]] = {}

    def start(self, function: Callable[..., Coroutine[Any, Any, object]], *arguments: Any, key: object = None) -> None:
        """Call a function in the background, unless a call with this key is in progress; None stands for no key."""
        key = object() if key is None else key
        if key not in self.tasks:
            self.tasks[key] = asyncio.get_running_loop().create_task(function(*arguments))
            self.tasks[key].add_done_callback(lambda _: self.tasks.pop(key))


class Turn:
    """Gives the agent's other work its turn while a coroutine works for long, which calls `pause` after each step."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + settings.TURN_SECONDS

    async def pause(self) -> None:
        """Let other coroutines run if this one has had its turn."""
        if time.monotonic() >= self._ends:
            await asyncio.sleep(0)
            self._ends = time.monotonic() + settings.TURN_SECONDS


class ChangeNotifier:
    """Counts changes and wakes every coroutine that waits for the next one."""

    def __init__(self) -> None:
        # The number of changes so far. Read it before you read the state that may change, and pass it to
        # `wait_for_change` afterwards, which then returns at once if a change happened in between (for example while
        # the state was being sent over a connection).
        self.count = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Record a change and wake all waiters."""
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, count: int) -> None:
        """Wait until more than `count` changes have happened; see the attribute `count`."""
        if self.count == count:
            await self._changed.wait()

    async def stream_until(self, done: asyncio.Future[Any], interval: float) -> AsyncIterator[None]:
        """Yield now and after every change until `done` completes.

        `interval` is the seconds after each time in which changes are collected for the next one.
        """
        while not done.done():
            count = self.count
            yield
            await asyncio.wait({done}, timeout=interval)
            await wait_for_first(asyncio.wait({done}), self.wait_for_change(count))


class ChangeWaiter:
    """Waits again and again for changes of something that is read after each wait.

    Create it before the first read, so that it misses no change after that. At least `min_interval` seconds are between
    two reads. A wait ends without a change after `max_interval` seconds; with None it does not.
    """

    def __init__(self, changed: ChangeNotifier, min_interval: float, max_interval: float | None) -> None:
        self._changed = changed
        self._min_interval = min_interval
        self._max_interval = max_interval
        # Changes up to this one had happened before the last read.
        self._known_change = changed.count
        self._last_read = 0.0

    async def wait(self) -> None:
        """Wait until there has been a change since the last read, and the next read is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._max_interval):
                await self._changed.wait_for_change(self._known_change)
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._last_read + self._min_interval - clock())
        self._known_change, self._last_read = self._changed.count, clock()


class FolderWatcher:
    """Watches folders for files that are written to. The inotify instance exists only while a folder is watched."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._callbacks: dict[int, list[Callable[[], None]]] = {}

    @contextlib.contextmanager
    def watch(self, folder: Path, changed: Callable[[], None]) -> Iterator[bool]:
        """Call a function after one or more files in a folder were written to, until the context is left.

        Yields False if the system cannot watch the folder, such as when its inotify limits are exhausted.
        """
        watch = self._add(folder, changed)
        try:
            yield watch is not None
        finally:
            if watch is not None:
                self._remove(watch, changed)

    def _add(self, folder: Path, changed: Callable[[], None]) -> int | None:
        try:
            if self._inotify is None:
                self._inotify = Inotify(IN_MODIFY)
                asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._dispatch)
            watch = self._inotify.add(folder)
        except OSError:
            self._close_unless_used()
            return None
        self._callbacks.setdefault(watch, []).append(changed)
        return watch

    def _remove(self, watch: int, changed: Callable[[], None]) -> None:
        assert self._inotify is not None, "it exists as long as a folder is watched"
        self._callbacks[watch].remove(changed)
        if not self._callbacks[watch]:
            del self._callbacks[watch]
            self._inotify.remove(watch)
            self._close_unless_used()

    def _close_unless_used(self) -> None:
        if self._inotify is not None and not self._callbacks:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None

    def _dispatch(self) -> None:
        assert self._inotify is not None, "its reader is removed before it is closed"
        watches = self._inotify.read()
        for watch, callbacks in list(self._callbacks.items()):
            if watch in watches or OVERFLOW in watches:
                for changed in list(callbacks):
                    changed()
