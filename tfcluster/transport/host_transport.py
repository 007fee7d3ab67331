"""The interface of a transport to the agent of a cluster on one host; `local` and `remote_transport` have one each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tfcluster.errors import ClusterError
    from tfcluster.transport.channel import Channel
    from tfcluster.transport.dry_run_probe import Probe


@dataclass(frozen=True)
class HostReport:
    """The result of probing a host.

    If the host cannot be reached (a HostUnreachableError) or has no suitable Python, nothing but that problem is known.
    """

    host: str
    problems: tuple[ClusterError, ...] = ()  # what keeps an agent from starting there, with hints that say what to type
    program: str = "ssh"  # the program on this machine that reaches it
    python: str = ""  # path; empty if it is not known
    python_version: str = ""  # such as `3.11.2`
    tensorflow: str | None = None  # version for that Python; None if there is none or the version cannot be determined
    free_bytes: int = 0  # disk space for the host's state
    clock_offset: float = 0.0  # seconds by which the host's clock is ahead of this machine's
    clock_error: float = 0.0  # maximum error of the offset in seconds, which is half the round-trip time
    shipped_bytes: int = 0  # size of the code bundle that had to be sent; 0 if the host had it
    unexamined: tuple[str, ...] = ()  # what a dry run, which changes nothing on the host, could not check, and why


class HostTransport(Protocol):
    """The transport to the agent of one cluster on one host.

    If the host cannot be reached, `examine` and `probe` report it; `open`, `is_up` and `has_state` raise a
    HostUnreachableError, `open` in bounded time.
    """

    cluster: str
    host: str
    is_remote: bool  # a connection can break while the agent continues, because a network is in between

    def examine(self) -> HostReport | None:
        """Prepare the host for an agent by its setup commands, unless they have been run there, and examine it.

        An unreachable host has a report too. Return None for this machine, which needs no preparation.
        """

    def probe(self) -> tuple[HostReport | None, Probe | None]:
        """Start the dry-run preflight of the host, which changes nothing there.

        Return the report (None for this machine), and a probe process on the host that answers further requests, which
        the caller closes; None if none could be started there.
        """

    def open(self, *, start: bool, upgrade: bool = False) -> Channel:
        """Connect to the agent, and send the greeting of the protocol; the first line to be received is the agent's.

        If the agent has died while its cluster is up, start a new one, which adopts the cluster. If the cluster turns
        out not to be up, close what is shared between commands.

        Args:
            start: Start an agent if there is none, even if the cluster is not up.
            upgrade: Replace an agent that speaks an older version of the protocol; otherwise such an agent is an error.
        """

    def is_up(self) -> bool:
        """Return whether the cluster is up on the host, whether or not its agent is alive."""

    def has_state(self) -> bool:
        """Return whether the cluster is up on the host or has left runs and logs; if not, close what commands share."""

    def command_line(self, argv: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return the argv on this machine that runs a command on the host, with the streams of this process.

        With `is_terminal`, the command has a terminal; on this machine it has that of this process.
        """

    def has_lost_host(self, code: int) -> bool:
        """Return whether the exit code of a `command_line` says that the connection was lost, and not the command's."""

    def forward_port(self, local: int, remote: int) -> AbstractContextManager[None]:
        """Forward a port of this machine's loopback device to one of the host's, until the context is left."""

    def disconnect(self) -> None:
        """Close what is shared between commands, after a shutdown; never fail, nor interrupt other commands."""
