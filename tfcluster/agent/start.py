"""The program of an agent's process: it holds on to the code that it runs, then it becomes the agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys

from tfcluster.boot import CODE, keep_code


def main() -> None:
    """Run the agent, whose configuration arrives as a line of standard input; see `agent.main`."""
    # The shared lock keeps code that was sent to this host from being pruned while an agent runs it: `exec` starts
    # processes with it, whereas the agent needs none of the files once it has kept the code in memory.
    with open(os.path.join(CODE, "tfcluster", "__init__.py")) as code:
        with contextlib.suppress(OSError):
            fcntl.flock(code, fcntl.LOCK_SH)
        from tfcluster.agent.main import main as run  # once the code is locked

        keep_code()
        if line := sys.stdin.readline():
            run(line)
