"""What every way to a host's agent has to offer, whatever lies between."""

from __future__ import annotations

from typing import Protocol

from tfcluster.errors import ClusterError, ExitCode


class HostUnreachableError(ClusterError):
    """A host cannot be reached: why, and what to type.

    Args:
        host: What the cluster calls it.
        why: In words, without the host's name.
        hint: What to type or change next.
    """

    def __init__(self, host: str, why: str, hint: str = "") -> None:
        super().__init__(f"host {host!r} cannot be reached: {why}", hint=hint, exit_code=ExitCode.UNREACHABLE)
        self.host = host


class Channel(Protocol):
    """A connection to an agent, for one request."""

    def send(self, data: bytes) -> bool:
        """Send data; False when the agent has hung up, which shows itself too when its answer is read."""

    def wait_readable_or(self, fd: int) -> bool:
        """Wait until a descriptor can be read or the agent has said something; whether the agent has."""

    def wait_readable(self, seconds: float) -> bool:
        """Wait until the agent has said something, or has hung up; whether it has within so many seconds."""

    def receive(self, timeout: float | None) -> bytes:
        """What has arrived, waiting for something; nothing when the agent hung up or died.

        Raises:
            ClusterError: Nothing came within `timeout` seconds.
        """

    def close(self) -> None:
        """Hang up."""

    def wait_for_end(self, timeout: float) -> bool:
        """Wait until the agent's process has ended; whether it did within `timeout` seconds.

        Raises:
            HostUnreachableError: Its host cannot be asked.
        """


class HostTransport(Protocol):
    """The way to the agent of one cluster on one host.

    Attributes:
        cluster: The cluster's name.
        host: The host's name.
    """

    cluster: str
    host: str

    def open(self, *, start: bool) -> Channel:
        """Connect; an agent that died while its cluster is up is replaced by one that goes on with it.

        Args:
            start: Start an agent if there is none, though the cluster is not up.

        Nothing is kept open between commands where it turns out that the cluster is not up.

        Raises:
            ClusterError: There is no agent, or none could be started.
            HostUnreachableError: The host cannot be reached, which is known in bounded time.
        """

    def is_up(self) -> bool:
        """Whether the cluster is up on the host, whether or not its agent lives.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """

    def has_state(self) -> bool:
        """Whether the cluster is up on the host, or has left runs and logs there; else nothing is kept open.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """

    def disconnect(self) -> None:
        """End what is kept open between commands, once the cluster is down; never fails, and disturbs no command."""


def not_running(cluster: str) -> ClusterError:
    """That there is no such cluster, or it is down."""
    return ClusterError(
        f"cluster {cluster!r} is not running",
        hint="Start it with `tfcluster up`, or choose another with -c NAME.",
        exit_code=ExitCode.NOT_RUNNING,
    )
