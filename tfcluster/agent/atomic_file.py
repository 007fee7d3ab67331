"""Atomic file updates: write, replace and unlink, one system call per step, so that tests can crash at any step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def _go_on(step: str, path: Path) -> None:
    """Do nothing between two steps."""


class AtomicFiles:
    """Writes, replaces and removes files.

    Args:
        before: A hook that is called before each step with the step's name and file. The steps are `open`, `write`,
            `sync`, `close`, `replace` and `unlink`. An exception that the hook raises propagates as the step's own.
    """

    def __init__(self, before: Callable[[str, Path], None] = _go_on) -> None:
        self._before = before

    def write(self, path: Path, data: bytes, *, durable: bool) -> None:
        """Write a whole file that only this user can access.

        Args:
            path: The file; its previous content is lost from the first step on.
            data: The new content.
            durable: Whether to sync the data to the disk before returning, so that it survives a power loss.

        Raises:
            OSError: A step failed; the file may contain a part of the data.
        """
        self._before("open", path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._before("write", path)
            while data:  # a disk that is almost full accepts only a part
                data = data[os.write(fd, data) :]
            if durable:
                self._before("sync", path)
                os.fsync(fd)
            self._before("close", path)
        finally:
            os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Replace a file with another one atomically: a reader sees either the old file or the new one.

        Args:
            source: The file that takes the target's place.
            target: The file that is replaced.

        Raises:
            OSError: The file cannot be replaced, and is unchanged.
        """
        self._before("replace", target)
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file if it exists.

        Raises:
            OSError: The file cannot be removed.
        """
        self._before("unlink", path)
        path.unlink(missing_ok=True)
