"""The interfaces that every transport to a host's agent implements, local or over ssh."""

from __future__ import annotations

from typing import Protocol

from tfcluster.errors import ClusterError, ExitCode


class HostUnreachableError(ClusterError):
    """A host cannot be reached.

    Args:
        host: The name of the host in the cluster.
        why: The reason, without the host's name.
        hint: What the user can type or change to fix it.
    """

    def __init__(self, host: str, why: str, hint: str = "") -> None:
        super().__init__(f"host {host!r} cannot be reached: {why}", hint=hint, exit_code=ExitCode.UNREACHABLE)
        self.host = host


class Channel(Protocol):
    """A connection to an agent."""

    def send(self, data: bytes) -> bool:
        """Send data.

        Returns:
            False if the agent has closed the connection. `receive` detects that too.
        """

    def wait_readable(self, seconds: float | None, *fds: int) -> bool:
        """Wait until the agent has sent something or has closed the connection, or until a descriptor is readable.

        Args:
            seconds: The maximum time to wait; None for no limit.
            *fds: Other descriptors to wait for.

        Returns:
            Whether the agent has sent something or has closed the connection.
        """

    def receive(self, timeout: float | None) -> bytes:
        """Wait for data and return it.

        Args:
            timeout: The maximum time to wait in seconds, or None to wait without a limit.

        Returns:
            What has arrived; empty if the agent closed the connection or died.

        Raises:
            ClusterError: Nothing arrived within `timeout` seconds.
        """

    def timeout_error(self, time: str) -> ClusterError:
        """Return the error for an agent that has not sent anything for some time.

        Args:
            time: The time that has passed, such as `5 s`.
        """

    def close(self) -> None:
        """Close the connection."""

    def wait_for_end(self, timeout: float) -> bool:
        """Wait until the agent's process has exited.

        Args:
            timeout: The maximum time to wait in seconds.

        Returns:
            True if the process exited within that time.

        Raises:
            HostUnreachableError: The agent's host cannot be reached.
        """


class HostTransport(Protocol):
    """The transport to the agent of one cluster on one host.

    Attributes:
        cluster: The cluster's name.
        host: The host's name.
    """

    cluster: str
    host: str

    def open(self, *, start: bool) -> Channel:
        """Connect to the agent.

        If the agent has died while its cluster is up, start a new one, which adopts the cluster. If the cluster turns
        out not to be up, close what is shared between commands.

        Args:
            start: Start an agent if there is none, even if the cluster is not up.

        Returns:
            A connection.

        Raises:
            ClusterError: There is no agent, or none could be started.
            HostUnreachableError: The host cannot be reached. This is detected in bounded time.
        """

    def is_up(self) -> bool:
        """Tell whether the cluster is up on the host, whether or not its agent is alive.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """

    def has_state(self) -> bool:
        """Tell whether the cluster is up on the host or has left runs and logs there.

        If neither is the case, close what is shared between commands.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """

    def disconnect(self) -> None:
        """Close what is shared between commands, after the cluster has been shut down.

        This never fails and does not interrupt other commands.
        """


def not_running(cluster: str) -> ClusterError:
    """Return the error that a cluster does not exist or is down."""
    return ClusterError(
        f"cluster {cluster!r} is not running",
        hint="Start it with `tfcluster up`, or choose another with -c NAME.",
        exit_code=ExitCode.NOT_RUNNING,
    )
