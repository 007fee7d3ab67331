"""What is done with a path at which a file of ours is to be, and may be something else."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path


def remove_unless_file(path: Path) -> None:
    """Remove what has taken the place of a file of ours and is none: to open a named pipe would wait for ever.

    Raises:
        OSError: It cannot be removed.
    """
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        elif not stat.S_ISREG(mode):
            path.unlink()


def read_file(path: Path, longest: int) -> bytes:
    """Read a file that somebody may have replaced.

    Args:
        path: The file.
        longest: Bytes that it has at most.

    Raises:
        OSError: It cannot be read.
        ValueError: It is longer, or no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a named pipe would wait for a writer
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a regular file")
        if found.st_size > longest:
            raise ValueError(f"{found.st_size} bytes long, it has at most {longest}")
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)
