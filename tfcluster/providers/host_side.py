"""What a provider does on a host itself: in the session that starts the agent, and in the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from tfcluster.core.status import JobStatus


class StartedAgent(Protocol):
    """A process that was started as an agent, with pipes as its standard streams; a Popen is one."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def wait(self) -> int:
        """Wait until the process has exited, and return its exit code."""


#: Starts an agent by its command line and environment.
StartAgent = Callable[[Sequence[str], Mapping[str, str]], StartedAgent]


class HostSide:
    """What a provider does on one host; it does nothing unless a class says more."""

    #: Why a run ends that is stopped because its host ends.
    end_cause = "the host is shutting down"
    #: How many seconds before the end of the host its runs get SIGTERM; None if the end is not known before.
    grace: int | None = None

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """Use what the provider has written into the host's record."""

    def join(self, state: Path) -> StartAgent | None:
        """Prepare this process, which is about to start an agent; return what starts it, if that is not this process.

        `state` is the cluster's state folder on this host. Raises ClusterError if no agent may be started here.
        """
        return None

    def read_end(self) -> int | None:
        """Return when the host ends, in Unix seconds; None if that is not limited. This can block for long.

        Raises ClusterError if it cannot be found out.
        """
        return None

    def job_status(self, nodes: tuple[str, ...], ends_in_s: float | None) -> JobStatus | None:
        """Return the job that the hosts are in; None if the provider has no jobs."""
        return None
