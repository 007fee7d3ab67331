"""The connectivity check of preflight: can the hosts connect to each other's ports, before any server listens there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import ReachRequest

#: Makes a host connect to addresses, each with a timeout in seconds; returns the reason of each failure, by address.
Dial = Callable[[str, list[str], float], Mapping[str, str]]


@dataclass(frozen=True)
class ConnectivityFailure:
    """A task to which another host cannot connect.

    Attributes:
        host: The host that tried to connect.
        source: The address of that host.
        task: The task.
        why: The reason, as text.
    """

    host: str
    source: str
    task: Task
    why: str

    def __str__(self) -> str:
        return f"{self.host} cannot reach {self.task.short} at {self.task.address} on {self.task.host}: {self.why}"

    @property
    def rule(self) -> str:
        """Return a hint with the firewall rule to add on the task's host."""
        return (
            f"A firewall is in between, perhaps that of {self.task.host}; there: "
            f"`sudo iptables -I INPUT -p tcp -s {self.source} --dport {self.task.port} -j ACCEPT` "
            "(with fixed ports in the spec the rule holds for the next `up` too)."
        )


def check_connectivity(
    cluster: Cluster, topology: ClusterTopology, hosts: Sequence[str], dial: Dial | None = None
) -> tuple[list[ConnectivityFailure], Mapping[str, ClusterError]]:
    """Make hosts connect to each other's tasks, while agents or probes listen on the ports of these tasks.

    Args:
        cluster: The cluster.
        topology: The cluster's topology, with every port allocated.
        hosts: The hosts to check; leave out those whose servers run already, as their restricted ports do not accept
            new members.
        dial: Makes a host connect to addresses; None lets the host's agent do it.

    Returns:
        The connections that failed, and the error of each host that could not be asked.
    """
    if len(hosts) < 2:
        return [], {}
    others = {host: [task for other in hosts if other != host for task in topology.on(other)] for host in hosts}

    def by_agent(host: str, addresses: list[str], timeout: float) -> Mapping[str, str]:
        return cluster.connect(host).call(ReachRequest(tuple(addresses), timeout)).failures

    def try_others(host: str) -> list[ConnectivityFailure]:
        addresses = list(dict.fromkeys(task.address for task in others[host]))
        failures = (dial or by_agent)(host, addresses, settings.CONNECTIVITY_CONNECT_SECONDS)
        refused = partial(ConnectivityFailure, host, cluster.hosts[host].address)
        return [refused(task, failures[task.address]) for task in others[host] if task.address in failures]

    told, wrong = split(
        map_hosts([host for host in hosts if others[host]], try_others, settings.CONNECTIVITY_REPLY_SECONDS)
    )
    return [each for found in told.values() for each in found], wrong
