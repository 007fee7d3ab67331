"""A cluster as a command knows it: its name, its hosts, and the way to the agent on each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfcluster.client.rpc import AgentClient
from tfcluster.paths import LOCAL_HOST
from tfcluster.transport.base import HostTransport
from tfcluster.transport.local import LocalTransport

if TYPE_CHECKING:
    from tfcluster.core.hosts import Host
    from tfcluster.transport.dry_run_probe import Probe
    from tfcluster.transport.ssh import HostReport, SshTransport


class Cluster:
    """A cluster and where it is.

    Args:
        name: Its name.
        hosts: Its hosts, in the order of the spec; None where it is on this machine alone.
        head: The host of the task that leads, whose agent has the runs.
    """

    def __init__(self, name: str, hosts: tuple[Host, ...] | None = None, head: str = LOCAL_HOST) -> None:
        self.name = name
        self.head = head
        self._hosts = hosts
        self._reaches: dict[str, HostTransport] = {}

    @property
    def hosts(self) -> Mapping[str, Host]:
        """Its hosts by name."""
        if self._hosts is None:
            from tfcluster.core.hosts import THIS_MACHINE  # not needed by most that ask this machine alone

            self._hosts = (THIS_MACHINE,)
        return {host.name: host for host in self._hosts}

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine alone."""
        return self._hosts is None or self.hosts.keys() == {LOCAL_HOST}

    def reach(self, host: str) -> HostTransport:
        """The way to the agent on a host; the same for each request of a command."""
        if host not in self._reaches:
            self._reaches[host] = (
                LocalTransport(self.name) if host == LOCAL_HOST else make_transport(self.name, self.hosts[host])
            )
        return self._reaches[host]

    def connect(self, host: str) -> AgentClient:
        """The agents on a host, for one request after another."""
        return AgentClient(self.reach(host), elsewhere=host != LOCAL_HOST)

    def contact(self, host: str) -> HostReport | None:
        """Make the first contact with a host elsewhere, which never fails: what was found there; None for this machine.

        The commands that the spec wants to have run there once are run.
        """
        return None if host == LOCAL_HOST else self._there(host).examine()

    def probe(self, host: str) -> tuple[HostReport | None, Probe | None]:
        """Begin to examine a host without changing anything there.

        Returns:
            What was found at the contact, None for this machine; and a process there to ask more of, if there is one.

        Raises:
            ClusterError: No process could be started on this machine.
        """
        if host == LOCAL_HOST:
            from tfcluster.transport.dry_run_probe import begin_here

            return None, begin_here(self.name, host)
        return self._there(host).probe()

    def _there(self, host: str) -> SshTransport:
        from tfcluster.transport.ssh import SshTransport

        reach = self.reach(host)
        assert isinstance(reach, SshTransport), "every host but this machine is reached by ssh"
        return reach

    def leader(self) -> AgentClient:
        """The agents on the host of the task that leads."""
        return self.connect(self.head)


def make_transport(cluster: str, host: Host) -> HostTransport:
    """The way to a cluster's agent on a host elsewhere."""
    from tfcluster.transport.ssh import SshTransport

    return SshTransport(cluster, host)
