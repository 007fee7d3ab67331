"""A lock file: the kernel releases the lock when the process ends, and the file goes when the lock is released."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from tfcluster.runtime.files import remove_unless_file


class FileLock:
    """A file that this process has created and locked, see `acquire`.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path) -> FileLock | None:
        """Create a file, for this user alone, and lock it without waiting.

        Returns:
            The lock; None when another process, or another FileLock of this one, holds it.

        Raises:
            OSError: The file cannot be created, or what is in its place cannot be removed.
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
            # The previous holder may have removed the file between our open and our flock.
            if lock.is_in_place():
                return lock
            os.close(lock._fd)

    def is_in_place(self) -> bool:
        """Whether other processes still find the locked file at its path."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except OSError:
            return False

    def write(self, data: bytes) -> None:
        """Replace what is in the file, unless that is the same.

        Raises:
            OSError: It cannot be written.
        """
        if os.pread(self._fd, len(data) + 1, 0) == data:
            return
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

    def release(self) -> None:
        """Remove the file and release the lock; a file that another process has put in its place stays."""
        if self.is_in_place():
            with suppress(OSError):  # its folder has become read-only: an unlocked file does no harm
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Release the lock and leave the file."""
        os.close(self._fd)
