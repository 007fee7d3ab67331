"""Write, replace, remove and read files in whose place something else may be."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, durable: bool = False, is_shared: bool = False) -> None:
    """Replace a file by one that only this user can access: a reader sees either the old content or the new one.

    With `durable`, the data is synced to the disk first, so that a power loss leaves no empty file. With `is_shared`,
    other processes may replace the file at the same time. If an OSError is raised, the file is unchanged.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new" if is_shared else f"{path.name}.new")
    try:
        write_file(new, data, durable=durable)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):  # a partial file, for example on a full disk, has no use
            os.unlink(new)
        raise


def write_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a whole file that only this user can access, whatever is at its path; an OSError may leave a part of it."""
    remove(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while data:  # a disk that is almost full accepts only a part
            data = data[os.write(fd, data) :]
        if durable:
            os.fsync(fd)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove what is at a path, a folder too, if there is anything."""
    remove_unless_file(path)
    with suppress(FileNotFoundError):
        os.unlink(path)


def remove_unless_file(path: Path) -> None:
    """Remove what is in the place of a file and is not a regular file: opening a named pipe would block."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            import shutil  # rarely needed, and slow to import

            shutil.rmtree(path)
        elif not stat.S_ISREG(mode):
            path.unlink()


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a file that something else may have replaced. Raises ValueError if it is larger, or not a regular file."""
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
