"""Reaching an agent on another host, through the user's own ssh."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.errors import ClusterError
from tfcluster.model.hosts import Host
from tfcluster.transport.reach import Channel


@dataclass(frozen=True)
class Examination:
    """What a first contact found on a host.

    Attributes:
        host: What the cluster calls it.
        problems: All that is wrong, each with what to type; nothing else is known where the host cannot be reached
            (a HostUnreachableError) or has no fitting Python.
        python: The path of its Python; empty where it is not known.
        python_version: As `3.11.2`.
        tensorflow: The version of the TensorFlow installed for it; None where there is none, or it cannot be told.
        free_bytes: The space that is left for its state.
        clock_offset: Seconds that its clock is ahead of this machine's.
        clock_error: Half the round trip: the offset is known within so many seconds.
        shipped_bytes: What had to be sent of tfcluster's own code.
    """

    host: str
    problems: tuple[ClusterError, ...] = ()
    python: str = ""
    python_version: str = ""
    tensorflow: str | None = None
    free_bytes: int = 0
    clock_offset: float = 0.0
    clock_error: float = 0.0
    shipped_bytes: int = 0


class There:
    """The way to the agent of a cluster on another host.

    Args:
        cluster: The cluster's name.
        host: The host.
    """

    def __init__(self, cluster: str, host: Host) -> None:
        self.cluster = cluster
        self.host = host.name

    def open(self, *, start: bool) -> Channel:
        """See `Reach.open`."""
        raise NotImplementedError

    def is_up(self) -> bool:
        """See `Reach.is_up`."""
        raise NotImplementedError

    def has_state(self) -> bool:
        """See `Reach.has_state`."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """See `Reach.disconnect`: the shared ssh connection."""
        raise NotImplementedError

    def examine(self, *, setup: bool) -> Examination:
        """Make the first contact: look at the host and send it what it needs; never fails.

        Args:
            setup: Run the host's setup commands first, unless they have been run there before.
        """
        raise NotImplementedError
