"""The agent's files: atomic updates, lock files, and reading where something else may be in a file's place.

The kernel unlocks a lock file when the process exits.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def _no_hook(step: str, path: Path) -> None:
    """Do nothing between two steps."""


class AtomicFiles:
    """Writes, replaces and removes files.

    Args:
        before: A hook that is called before each step with the step's name and file. The steps are `open`, `write`,
            `sync`, `close`, `replace` and `unlink`. An exception that the hook raises propagates as the step's own.
    """

    def __init__(self, before: Callable[[str, Path], None] = _no_hook) -> None:
        self._before = before

    def write(self, path: Path, data: bytes, *, durable: bool) -> None:
        """Write a whole file that only this user can access.

        The previous content is lost from the first step on. With `durable`, the data is synced to the disk before this
        returns, so that it survives a power loss.

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
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Replace a file with another one atomically: a reader sees either the old file or the new one.

        Raises:
            OSError: The file cannot be replaced, and is unchanged.
        """
        self._before("replace", target)
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file if it exists."""
        self._before("unlink", path)
        path.unlink(missing_ok=True)


class FileLock:
    """A lock file that this process has created and locked; see `acquire`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path) -> FileLock | None:
        """Create a file that only this user can access, and lock it without waiting.

        Return None if another process, or another FileLock of this process, holds the lock.

        Raises:
            OSError: The file cannot be created, or something else at its path cannot be removed.
        """
        while True:
            remove_unless_file(path)
            lock = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            try:
                fcntl.flock(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock._fd)
                return None
            except OSError:
                os.close(lock._fd)
                raise
            # The previous holder may have removed the file between this process's open and flock.
            if lock.is_in_place():
                return lock
            os.close(lock._fd)

    def is_in_place(self) -> bool:
        """Return whether the locked file is still the one that other processes open at the path."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except OSError:
            return False

    def write(self, data: bytes) -> None:
        """Replace the content of the file; do nothing if the file has that content already."""
        if os.pread(self._fd, len(data) + 1, 0) == data:
            return
        os.pwrite(self._fd, data, 0)  # first, as on a full disk another file would get the block of an emptied one
        os.ftruncate(self._fd, len(data))

    def release(self) -> None:
        """Remove the file and release the lock.

        If another process has put its own file at the path, that file stays.
        """
        if self.is_in_place():
            with suppress(OSError):  # the directory has become read-only: an unlocked file does no harm
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Release the lock without removing the file."""
        os.close(self._fd)


def remove_unless_file(path: Path) -> None:
    """Remove what is in the place of a file and is not a regular file: opening a named pipe would block."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        elif not stat.S_ISREG(mode):
            path.unlink()


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a file that may have been replaced by something else.

    Raises:
        OSError: It cannot be read.
        ValueError: It is larger, or not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a named pipe would wait for a writer
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > max_bytes:
            raise ValueError(f"{status.st_size} bytes long, it has at most {max_bytes}")
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)
