"""Where the agent of a cluster listens on another host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteAgent:
    """The socket and the process of an agent on another host."""

    socket: str  # its path there
    pid: int
    is_forwardable: bool = True  # False if the host's ssh server does not forward it, as an earlier command has noticed
