"""Lock files, which the kernel unlocks when the process exits."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tfcluster.os.atomic_file import remove_unless_file


def remove_unlocked(path: Path) -> None:
    """Remove the lock file of a process that was killed; do nothing if a process holds the lock."""
    with suppress(OSError):
        if path.exists() and (lock := FileLock.acquire(path)) is not None:
            lock.release()


class FileLock:
    """A lock file that this process has created and locked; see `acquire`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path) -> FileLock | None:
        """Create and lock a file that only this user can access; return None if the lock is held, even by this process.

        Raises OSError if the file cannot be created, or something else at its path cannot be removed.
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
        """Remove the file, unless another process has put its own file at the path, and release the lock."""
        if self.is_in_place():
            with suppress(OSError):  # the directory has become read-only: an unlocked file does no harm
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Release the lock without removing the file."""
        os.close(self._fd)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, so that two processes do not replace each other's sockets in it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # the file system does not support locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
