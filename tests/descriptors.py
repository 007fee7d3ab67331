"""The descriptors of processes: what they hold, and a process that has few left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def held_by(pid: int) -> list[str]:
    """Return what the descriptors of a process are open for, as /proc/PID/fd shows it: paths, `socket:[INODE]`."""
    held = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            held.append(os.readlink(descriptor))
    return held


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Have this process get only that number of further descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each is the lowest that is free, so that below the last of them none is left, whichever the process had open.
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(count + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, limits[1]))
    try:
        for _ in range(count):
            os.close(taken.pop(0))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
