"""What can be wrong on the way to a host and to the agent there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import running_clusters

T = TypeVar("T")


class HostUnreachableError(ClusterError):
    """A host cannot be reached; `why` is the reason, without the host's name."""

    def __init__(self, host: str, why: str, hint: str = "") -> None:
        super().__init__(f"host {host!r} cannot be reached: {why}", hint=hint, exit_code=ExitCode.UNREACHABLE)
        self.host = host


class HostBusyError(HostUnreachableError):
    """A host, or the way to it, has too many logins in progress at the moment."""


def retry_while_busy(connect: Callable[[], T]) -> T:
    """Call a function, and again after a moment while it raises a HostBusyError, for the time that a connection has."""
    deadline = None
    while True:
        try:
            return connect()
        except HostBusyError:
            now = time.monotonic()
            deadline = deadline or now + settings.SSH_CONNECT_SECONDS
            if now > deadline:
                raise
        import random  # rarely needed, and slow to import

        time.sleep(random.uniform(*settings.SSH_BUSY_SECONDS))  # the others that were refused try again, too


class UnrecordedProcessesError(ClusterError):
    """Processes of a cluster run on a host without its journal; the message names the journal and the processes."""

    def __init__(self, cluster: str, message: str) -> None:
        hint = f"`tfcluster down -c {cluster}` stops them."
        super().__init__(message, hint=hint, exit_code=ExitCode.NOT_RUNNING)


def not_running(cluster: str) -> ClusterError:
    """Return the error that a cluster does not exist or is down."""
    others = [name for name in running_clusters() if name != cluster]
    choice = f"choose one that is running with -c: {', '.join(others)}" if others else "choose another with -c NAME"
    return ClusterError(
        f"cluster {cluster!r} is not running",
        hint=f"Start it with `tfcluster up`, or {choice}.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def no_descriptors(host: str, process: str, limit: int) -> HostUnreachableError:
    """Return the error that a process on this machine cannot open another file or connection."""
    return HostUnreachableError(
        host,
        f"{process} has no file descriptor left, of at most {limit:,}",
        "Raise the limit, such as by `ulimit -n 65536` in your shell; `ulimit -Hn` shows how far that goes.",
    )


def with_host(host: str, error: ClusterError) -> ClusterError:
    """Return an error from a host with the host's name."""
    return ClusterError(f"host {host!r}: {error.message}", hint=error.hint, exit_code=error.exit_code)


def clean_lines(output: str) -> list[str]:
    """Return the lines of a program's output without blank lines, and only the last line of a Python traceback."""
    lines = [line.strip() for line in output.expandtabs().splitlines()]
    lines = [line for line in lines if line]
    trace = next((number for number, line in enumerate(lines) if line.startswith("Traceback (")), len(lines))
    return [*lines[:trace], *lines[trace:][-1:]]


def no_response(host: str, attempt: str, seconds: float, output: str = "") -> HostUnreachableError:
    """Return the error that no message has come from a host.

    `attempt` is what a user types to reach it; `output` is what a shell there printed last.
    """
    return HostUnreachableError(
        host,
        f"no response within {seconds:g} s{output}",
        f"`{attempt}` shows whether it answers.",
    )
