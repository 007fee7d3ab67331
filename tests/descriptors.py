"""A process that has few descriptors left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


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
