"""Find a port for a client of the cluster that starts a server of its own."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence


def free_port(ports: Sequence[int] = ()) -> int:
    """Return a port that is free on this host, for the server that a strategy starts in its chief.

    `ports` are the ports to choose from, if possible.
    """
    for choice in random.sample(ports, len(ports)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", choice))
            return choice
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
