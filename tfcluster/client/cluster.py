"""The cluster handle of a command: the cluster's name, its hosts, and a transport to the agent on each host."""

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
    """A handle on a cluster: its name, its hosts, and their transports.

    Args:
        name: The cluster's name.
        hosts: The cluster's hosts, in the order of the spec; None if it is on this machine only.
        head: The host of the head task; the agent there manages the runs.
    """

    def __init__(self, name: str, hosts: tuple[Host, ...] | None = None, head: str = LOCAL_HOST) -> None:
        self.name = name
        self.head = head
        self._hosts = hosts
        self._reaches: dict[str, HostTransport] = {}
        self._clients: dict[str, AgentClient] = {}

    @property
    def hosts(self) -> Mapping[str, Host]:
        """Return the cluster's hosts by name."""
        if self._hosts is None:
            from tfcluster.core.hosts import THIS_MACHINE  # most commands on a single machine do not need this module

            self._hosts = (THIS_MACHINE,)
        return {host.name: host for host in self._hosts}

    @property
    def is_here(self) -> bool:
        """Return whether the cluster is on this machine only."""
        return self._hosts is None or self.hosts.keys() == {LOCAL_HOST}

    def reach(self, host: str) -> HostTransport:
        """Return the transport to the agent on a host; every request of a command shares one transport per host."""
        if host not in self._reaches:
            self._reaches[host] = (
                LocalTransport(self.name) if host == LOCAL_HOST else make_transport(self.name, self.hosts[host])
            )
        return self._reaches[host]

    def connect(self, host: str) -> AgentClient:
        """Return the RPC client for the agent on a host, whose connection all requests of a command share."""
        if host not in self._clients:
            self._clients[host] = AgentClient(self.reach(host), elsewhere=host != LOCAL_HOST)
        return self._clients[host]

    def contact(self, host: str) -> HostReport | None:
        """Make the first contact with a remote host; an unreachable host is reported, not raised.

        This runs the setup commands that the spec lists for the host, once.

        Returns:
            The report of the host; None for this machine.
        """
        return None if host == LOCAL_HOST else self._there(host).examine()

    def probe(self, host: str) -> tuple[HostReport | None, Probe | None]:
        """Start the dry-run preflight of a host, which changes nothing there.

        Returns:
            The report of the first contact (None for this machine), and a probe process on the host that answers
            further requests (None if none could be started there).

        Raises:
            ClusterError: No process could be started on this machine.
        """
        if host == LOCAL_HOST:
            from tfcluster.transport.dry_run_probe import start_local_probe

            return None, start_local_probe(self.name, host)
        return self._there(host).probe()

    def _there(self, host: str) -> SshTransport:
        from tfcluster.transport.ssh import SshTransport

        reach = self.reach(host)
        assert isinstance(reach, SshTransport), "every host but this machine is reached by ssh"
        return reach

    def leader(self) -> AgentClient:
        """Return an RPC client for the agent on the host of the head task."""
        return self.connect(self.head)


def make_transport(cluster: str, host: Host) -> HostTransport:
    """Return a transport over SSH to a cluster's agent on a remote host."""
    from tfcluster.transport.ssh import SshTransport

    return SshTransport(cluster, host)
