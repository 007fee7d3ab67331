"""The connection of a private cluster's tasks on several hosts: each host's forwarder, and its certificate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.core.topology import PRIVATE, ClusterTopology, Task
from tfcluster.errors import usage_error
from tfcluster.records import record_class

_BEGIN = "-----BEGIN CERTIFICATE-----"


@record_class(frozen=True)
class Forwarder:
    """The address and the ports of a host's forwarder."""

    address: str  # the host name or IP address to which the other hosts connect
    port: int  # the TCP port on which it listens for the other hosts
    ports: tuple[int, ...]  # the ports of the host's tasks and programs, to which it forwards


@record_class(frozen=True)
class Forwarding:
    """The configuration of one host's forwarder."""

    host: str  # the cluster's name for the host
    forwarders: Mapping[str, Forwarder]  # the forwarders of all hosts
    certificate: Path  # the file with the host's private key, its certificate and that of the cluster's authority
    until: float  # when the certificate ends, in seconds since the epoch

    @property
    def own(self) -> Forwarder:
        """Return the forwarder of this host."""
        return self.forwarders[self.host]

    def routes(self) -> dict[int, str]:
        """Return the name of the host by port, for the ports of other hosts' tasks."""
        others = {name: each for name, each in self.forwarders.items() if name != self.host}
        return {port: name for name, each in others.items() for port in each.ports}


@record_class(frozen=True)
class Certificate:
    """A host's certificate, with which it proves to the cluster's other hosts that it is one. All three are in PEM."""

    authority: str  # the certificate of the cluster's own authority
    certificate: str
    key: str = field(repr=False)  # the private key of the host's certificate
    until: float  # when the certificate ends, in seconds since the epoch

    @classmethod
    def from_pem(cls, text: str, until: float) -> Certificate:
        """Return the certificate in a text of `to_pem`; raises ValueError if the text is damaged."""
        key, certificate, authority = text.split(_BEGIN)
        return cls(_BEGIN + authority, _BEGIN + certificate, key, until)

    def to_pem(self) -> str:
        """Return the content of the file that a forwarder reads: the key, the certificate, and the authority's."""
        return self.key + self.certificate + self.authority


@record_class(frozen=True)
class CertificateFacts:
    """A host's certificate without its key."""

    authority: str  # the certificate of the authority that has issued it, in PEM
    until: float  # when it ends, in seconds since the epoch


def forwarders_of(topology: ClusterTopology) -> dict[str, Forwarder]:
    """Return the forwarders of a cluster by host; none if it is not private, or on one host."""
    if not needs_forwarders(topology):
        return {}
    return {
        host.name: Forwarder(
            host.address, host.tls_port, tuple(sorted({*topology.ports_on(host.name), *host.program_ports}))
        )
        for host in topology.hosts
        if host.tls_port is not None
    }


def needs_forwarders(topology: ClusterTopology) -> bool:
    """Return whether the tasks of a cluster are connected through forwarders."""
    return topology.network == PRIVATE and len(topology.hosts) > 1


def with_unique_ports(topology: ClusterTopology, running: ClusterTopology | None) -> ClusterTopology:
    """Return a topology whose tasks have unique ports in the whole cluster, as forwarders require.

    No other program listens in the cluster's private networks, so that no host has to be asked. Ports of the running
    cluster may still be in use, so they are not chosen. Raises ClusterError if two tasks have the same port in the
    spec.
    """
    tasks = (*topology.tasks, *topology.reserved)
    owners: dict[int, Task] = {}
    for task in tasks:
        if task.port is not None and (other := owners.setdefault(task.port, task)) != task and other.host != task.host:
            raise usage_error(
                f"{other.short} on {other.host} and {task.short} on {task.host} both have port {task.port}",
                "With `network: private` every task has its own port: change one, or leave the ports out.",
            )
    used = {port for host in running.hosts for port in running.ports_on(host.name)} if running else set()
    hosts = _with_program_ports(topology.hosts, {*used, *owners})
    taken = {*used, *owners, *(port for host in hosts for port in host.program_ports)}
    free = (port for port in range(settings.FIRST_PORT, settings.LAST_PORT + 1) if port not in taken)
    ports = {task.name: next(free) for task in tasks if task.port is None}
    return replace(topology.with_allocation(ports, {}), hosts=hosts)


def _with_program_ports(hosts: Collection[Host], taken: Collection[int]) -> tuple[Host, ...]:
    """Return hosts with ports for programs, which are the last free ones."""
    count = settings.PROGRAM_PORTS
    used = {*taken, *(port for host in hosts for port in host.program_ports)}
    blocks = (first for first in range(settings.LAST_PORT + 1 - count, settings.FIRST_PORT, -count))
    free = (first for first in blocks if used.isdisjoint(range(first, first + count)))
    return tuple(replace(host, first_program_port=next(free)) if not host.program_ports else host for host in hosts)
