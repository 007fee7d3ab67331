"""Child processes that run on their own, such as an agent and the link process: nothing waits for their end."""

from __future__ import annotations

import os
import subprocess
import threading

_released: set[int] = set()
_reaping = threading.Lock()


def release_child(process: subprocess.Popen[bytes]) -> None:
    """Leave a child process to run on its own, and reap those that were left before and have ended."""
    process.returncode = 0  # Popen neither waits for it nor warns that it still runs
    reap_children()
    with _reaping:
        _released.add(process.pid)


def reap_children() -> None:
    """Reap the released children that have ended; a process that runs for long does so for each SIGCHLD."""
    with _reaping:
        for pid in list(_released):
            try:
                has_ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:  # SIGCHLD is ignored, or the program that uses tfcluster reaps its children
                has_ended = True
            if has_ended:
                _released.remove(pid)
