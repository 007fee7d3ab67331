"""The command, with the hosts elsewhere played on this machine: `python -m tests.played status`.

Each has an agent and a state folder of its own; only the network between is not there. A file `away/HOST` in the
folder that TEST_HOSTS names takes a host away: it cannot be reached, and every connection to it breaks.
"""

from __future__ import annotations

import os
import sys
import time
from ipaddress import IPv4Address
from pathlib import Path

from tfcluster.cli.main import main
from tfcluster.client import cluster as module
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.channel import readable_fds
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.local import LocalAgentConnection, LocalTransport
from tfcluster.transport.remote_transport import HostReport, RemoteTransport

_LOOK_SECONDS = 0.05


class Played(RemoteTransport):
    """The way to a host that this machine plays."""

    def __init__(self, cluster: str, host: Host) -> None:
        super().__init__(cluster, host)
        self._here = LocalTransport(cluster, host.name)
        self._folder = Path(os.environ["TEST_HOSTS"])

    def open(self, *, start: bool, upgrade: bool = False, dry: bool = False) -> PlayedChannel:
        self.meet()
        return PlayedChannel(self, self._here.open(start=start, upgrade=upgrade, dry=dry))

    def is_up(self) -> bool:
        self.meet()
        return self._here.is_up()

    def has_state(self) -> bool:
        self.meet()
        return self._here.has_state()

    def disconnect(self) -> None:
        pass

    def examine(self, *, dry: bool = False) -> HostReport:
        try:
            self.meet()
        except ClusterError as error:
            return HostReport(self.host, (error,))
        return HostReport(self.host, python=sys.executable, has_packages=True)

    @property
    def is_away(self) -> bool:
        return (self._folder / "away" / self.host).exists()

    def meet(self) -> None:
        if self.is_away:
            raise HostUnreachableError(self.host, "connection timed out", f"Look whether {self.host} is up.")


class PlayedChannel(LocalAgentConnection):
    """A connection that breaks when the host goes away."""

    def __init__(self, there: Played, agent: LocalAgentConnection) -> None:
        super().__init__(agent._connection.dup())  # the other one closes its own
        self._there = there

    def wait_readable(self, seconds: float | None, *fds: int, to_send: bool = False) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._there.is_away:
            look = _LOOK_SECONDS if seconds is None else min(seconds, _LOOK_SECONDS)
            if super().wait_readable(look, *fds, to_send=to_send):
                return True
            if to_send or readable_fds(fds, 0) or (deadline is not None and time.monotonic() >= deadline):
                return False
        return True

    def receive(self, timeout: float | None) -> bytes:
        return b"" if self._there.is_away else super().receive(timeout)

    def wait_for_end(self, timeout: float) -> bool:
        self._there.meet()
        return super().wait_for_end(timeout)


if __name__ == "__main__":
    module.make_transport = Played
    # Here the hosts can dial 127.0.0.2 as well as each other.
    type.__setattr__(IPv4Address, "is_loopback", False)
    sys.argv[0] = "tfcluster"
    main()
