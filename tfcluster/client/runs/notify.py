"""Run the command that the user wants to be told with that a run has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess

from tfcluster import settings
from tfcluster.client.rpc.parallel import warn
from tfcluster.core.notices import Notice, environment_of


def run_notify_command(command: str, notice: Notice) -> None:
    """Run a command with a notice, as JSON on its standard input and as environment variables; warn if it fails.

    What it prints goes to standard error: standard output is the run's.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=2,
        env={**os.environ, **environment_of(notice)},
        start_new_session=True,
    )
    try:
        process.communicate(json.dumps(notice).encode() + b"\n", settings.NOTICE_SECONDS)
    except subprocess.TimeoutExpired:
        warn(f"the command of --notify did not end within {settings.NOTICE_SECONDS:g} s, and was killed")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode > 0:
        warn(f"the command of --notify ended with exit code {process.returncode}")
