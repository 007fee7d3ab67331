"""The interface of a transport to the agent of a cluster on one host; `local` and `ssh` have one each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tfcluster.transport.channel import Channel
    from tfcluster.transport.dry_run_probe import Probe
    from tfcluster.transport.ssh import HostReport


class HostTransport(Protocol):
    """The transport to the agent of one cluster on one host.

    Attributes:
        cluster: The cluster's name.
        host: The host's name.
        is_remote: A connection can break while the agent continues, because a network is in between.
    """

    cluster: str
    host: str
    is_remote: bool

    def examine(self) -> HostReport | None:
        """Prepare the host for an agent: run the setup commands that the spec lists for it, once, and examine it.

        Returns:
            The report, also of a host that cannot be reached; None for this machine, which needs no preparation.
        """

    def probe(self) -> tuple[HostReport | None, Probe | None]:
        """Start the dry-run preflight of the host, which changes nothing there.

        Returns:
            The report (None for this machine), and a probe process on the host that answers further requests, which
            the caller closes; None if none could be started there.

        Raises:
            ClusterError: No process could be started on this machine.
        """

    def open(self, *, start: bool, upgrade: bool = False) -> Channel:
        """Connect to the agent, and send the greeting of the protocol.

        If the agent has died while its cluster is up, start a new one, which adopts the cluster. If the cluster turns
        out not to be up, close what is shared between commands.

        Args:
            start: Start an agent if there is none, even if the cluster is not up.
            upgrade: Replace an agent that speaks an older version of the protocol. Otherwise a viewer answers in its
                place; see `Channel.is_viewer`.

        Returns:
            The connection. The first line to be received is the agent's greeting.

        Raises:
            ClusterError: There is no agent, or none could be started.
            HostUnreachableError: The host cannot be reached. This is detected in bounded time.
        """

    def is_up(self) -> bool:
        """Return whether the cluster is up on the host, whether or not its agent is alive.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """

    def has_state(self) -> bool:
        """Return whether the cluster is up on the host or has left runs and logs there.

        If neither is the case, close what is shared between commands.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """

    def command_line(self, words: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return the command line on this machine that runs a command on the host, with the streams of this process.

        Args:
            words: The words of the command.
            is_terminal: Give the command a terminal; on this machine it has that of this process.
        """

    def forward_port(self, local: int, remote: int) -> AbstractContextManager[None]:
        """Forward a port of this machine's loopback device to one of the host's, until the context is left.

        Args:
            local: The port here.
            remote: The port there.

        Raises:
            ClusterError: It cannot be forwarded.
        """

    def disconnect(self) -> None:
        """Close what is shared between commands, after the cluster has been shut down.

        This never fails and does not interrupt other commands.
        """
