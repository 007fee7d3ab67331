"""The steps by which a file is changed, one system call each, so that a test can have any of them be the last."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def _go_on(step: str, path: Path) -> None:
    """Nothing stands between the steps."""


class Files:
    """Writes, replaces and removes files.

    Args:
        before: Called with the name of each step and its file before the step is made: `open`, `write`, `sync`,
            `close`, `replace`, `unlink`. What it raises is what the step raises.
    """

    def __init__(self, before: Callable[[str, Path], None] = _go_on) -> None:
        self._before = before

    def write(self, path: Path, data: bytes, *, durable: bool) -> None:
        """Write a whole file, for this user alone.

        Args:
            path: The file; what it held is gone from the first step on.
            data: What it shall hold.
            durable: Whether all of it is on the disk when this returns, so that it outlives a power loss.

        Raises:
            OSError: A step failed; the file may hold a part of the data.
        """
        self._before("open", path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._before("write", path)
            while data:  # a disk that fills up takes a part
                data = data[os.write(fd, data) :]
            if durable:
                self._before("sync", path)
                os.fsync(fd)
            self._before("close", path)
        finally:
            os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Put a file in the place of another; whoever looks sees the one or the other.

        Raises:
            OSError: It cannot be replaced, and stands as it was.
        """
        self._before("replace", target)
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there.

        Raises:
            OSError: It cannot be removed.
        """
        self._before("unlink", path)
        path.unlink(missing_ok=True)
