"""Calls back when a file in a folder is written to: one inotify instance for all folders that the agent watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tfcluster.processes.inotify import Inotify


class FolderWatcher:
    """Watches folders for files that are written to. The inotify instance exists only while a folder is watched."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._callbacks: dict[int, list[Callable[[], None]]] = {}

    @contextlib.contextmanager
    def watch(self, folder: Path, changed: Callable[[], None]) -> Iterator[bool]:
        """Call a function after each change, until the context is left.

        Args:
            folder: The folder.
            changed: Called after one or more files in the folder were written to.

        Yields:
            False if the system cannot watch the folder, such as when its inotify limits are exhausted.
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
                self._inotify = Inotify()
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
        for watch in self._inotify.read():
            for changed in list(self._callbacks.get(watch, ())):
                changed()
