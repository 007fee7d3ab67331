"""Files of tfcluster in whose places something else may be, such as a folder or a named pipe."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path


def remove_unless_file(path: Path) -> None:
    """Remove what is in the place of a file and is not a regular file: opening a named pipe would block.

    Raises:
        OSError: It cannot be removed.
    """
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        elif not stat.S_ISREG(mode):
            path.unlink()


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a file that may have been replaced by something else.

    Args:
        path: The file.
        max_bytes: The maximum size in bytes.

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
