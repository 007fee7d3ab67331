"""Notification of changed files by inotify(7), which Python's standard library lacks."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

from tfcluster.os import libc

_IN_MODIFY = 0x2
# struct inotify_event: watch descriptor, mask, cookie, length of the name that follows.
_EVENT = struct.Struct("=iIII")


class Inotify:
    """An inotify instance, for changed files in folders; raises OSError if the user, or the process, has too many."""

    def __init__(self) -> None:
        self._fd = libc.call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor, which is readable after a file has changed."""
        return self._fd

    def add(self, folder: Path) -> int:
        """Watch a folder, or raise an OSError; return the watch descriptor, the same if it is watched already."""
        return libc.call("inotify_add_watch", self._fd, os.fsencode(folder), _IN_MODIFY)

    def remove(self, watch: int) -> None:
        """Stop watching a folder; do nothing if the folder has been deleted."""
        with suppress(OSError):
            libc.call("inotify_rm_watch", self._fd, watch)

    def read(self) -> set[int]:
        """Return the watch descriptors of the folders with changes since the last call; do not block."""
        watches: set[int] = set()
        with suppress(BlockingIOError):
            while True:
                data = os.read(self._fd, 1 << 16)
                offset = 0
                while offset < len(data):
                    watch, _, _, length = _EVENT.unpack_from(data, offset)
                    watches.add(watch)
                    offset += _EVENT.size + length
        return watches

    def close(self) -> None:
        """Close the instance and remove all of its watches."""
        os.close(self._fd)
