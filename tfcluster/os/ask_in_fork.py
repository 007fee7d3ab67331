"""Run a function in a fork of this process, which it can change as it likes, and get its answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tfcluster import settings


def ask_in_fork(function: Callable[[], bytes]) -> bytes:
    """Return what a function returns in a fork; empty if it raised, or took too long. Raises OSError if fork fails."""
    reading, writing = os.pipe()
    with open(reading, "rb") as answer, open(writing, "wb", 0) as pipe:
        pid = os.fork()
        if pid == 0:
            signal.alarm(settings.FORK_ANSWER_SECONDS)
            try:
                pipe.write(function())
            finally:
                os._exit(0)
        pipe.close()
        result = answer.read()
    os.waitpid(pid, 0)
    return result
