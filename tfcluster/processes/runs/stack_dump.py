"""Let a program's process write its Python stacks to a file when it gets a signal, without ending it.

The handler is faulthandler's, in C: it also answers while C code holds the global interpreter lock, which a thread or a
handler in Python could not. Without that lock, it must not read the stacks of other threads: of one that runs, it would
follow a pointer to nowhere and end the process. So each thread gets a signal and writes its own. Processes that the
program forks inherit the handler; one that executes another program does not.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
from pathlib import Path

from tfcluster import settings

#: The name of the file, in a run's folder, to which the processes of the run's program write their stacks.
STACKS = "stacks.txt"


def enable(folder: Path) -> None:
    """Have each Python thread of this process, and of those that it forks, append its stack to a file at a signal.

    Without a descriptor or space on the disk, the process has no stacks to show, and runs all the same.
    """
    with contextlib.suppress(OSError):
        fd = os.open(folder / STACKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A high number: one that the program closes, with descriptors that it has not opened, is seldom used again.
            limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], settings.STACK_FD_MAX)
            high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, limit - settings.STACK_FDS)
        finally:
            os.close(fd)
        faulthandler.register(settings.STACK_SIGNAL, file=high, all_threads=False)
