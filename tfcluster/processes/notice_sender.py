"""Deliver one notice, by HTTP or by a command, in a process that may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.core.notices import Notice, environment_of
from tfcluster.os.daemonize import set_parent_death_signal
from tfcluster.process_mark import MARK

# The exit code of timeout(1) when the time is over.
_TIMED_OUT = 124


def post(url: str, notice: Notice) -> str | None:
    """Send a notice to a webhook.

    Return why it was not accepted; None if it was. The URL is in no message.
    """
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Follows no redirection, after which the notice would be missing."""

        def redirect_request(self, *arguments: object) -> None:
            """Refuse it, which raises an HTTPError."""

    data = json.dumps(notice).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "tfcluster"}
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.build_opener(NoRedirect).open(request, timeout=settings.NOTICE_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"HTTP status {error.code}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except Exception as error:  # such as a URL that http.client refuses, which its message contains
        return type(error).__name__


def run_command(command: str, notice: Notice) -> str | None:
    """Run a command with a notice: as JSON on its standard input, and as environment variables.

    Return why it failed; None if it succeeded.
    """
    home = Path.home()
    environment = {**os.environ, **environment_of(notice)}
    environment.pop(MARK, None)  # what the command leaves behind does not belong to the cluster
    limit = settings.NOTICE_SECONDS
    with tempfile.TemporaryFile() as output:  # no pipe, which a process that the command leaves behind would hold open
        # If this process is killed, `timeout` gets SIGTERM, and ends the command with all that it has started.
        process = subprocess.Popen(
            ["timeout", "-k", "1", f"{limit:g}", "/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=home if home.is_dir() else "/",
            preexec_fn=partial(set_parent_death_signal, os.getpid(), signal.SIGTERM),
        )
        process.communicate(json.dumps(notice).encode() + b"\n")
        if process.returncode == 0:
            return None
        output.seek(0)
        lines = output.read(settings.IO_BLOCK_BYTES).decode(errors="replace").strip().splitlines()
    if process.returncode in (_TIMED_OUT, -signal.SIGKILL):
        return f"it did not end within {limit:g} s"
    ended = f"exit code {process.returncode}"
    return f"{ended}: {lines[-1]}" if lines else ended
