"""Whether hosts can dial each other's ports, tried before any server listens there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Method

# Seconds for a connection between two hosts; a firewall that drops what it does not want shows itself only so.
_DIAL_SECONDS = 5.0
_ANSWER_SECONDS = 15.0

#: Has a host dial addresses, each for so many seconds: why, by address, for those to which that failed.
Dial = Callable[[str, list[str], float], Mapping[str, str]]


@dataclass(frozen=True)
class ConnectivityFailure:
    """A task that another host cannot dial.

    Attributes:
        host: Who dialled.
        source: The address of that host.
        task: The task.
        why: In words.
    """

    host: str
    source: str
    task: Task
    why: str

    def __str__(self) -> str:
        return f"{self.host} cannot reach {self.task.short} at {self.task.address} on {self.task.host}: {self.why}"

    @property
    def rule(self) -> str:
        """What is to be done about it, on the task's host."""
        return (
            f"A firewall is in between, perhaps that of {self.task.host}; there: "
            f"`sudo iptables -I INPUT -p tcp -s {self.source} --dport {self.task.port} -j ACCEPT` "
            "(with fixed ports in the spec the rule holds for the next `up` too)."
        )


def check_connectivity(
    cluster: Cluster, topology: ClusterTopology, hosts: Sequence[str], dial: Dial | None = None
) -> tuple[list[ConnectivityFailure], Mapping[str, ClusterError]]:
    """Have hosts, on whose ports agents let connections come, dial each other's tasks.

    Args:
        cluster: The cluster.
        topology: Its topology, with every port chosen.
        hosts: The hosts to try; others, where servers run already, are closed to newcomers.
        dial: Has a host dial; its agent does where this is None.

    Returns:
        What did not work, and why a host could not be asked.
    """
    if len(hosts) < 2:
        return [], {}
    others = {host: [task for other in hosts if other != host for task in topology.on(other)] for host in hosts}

    def by_agent(host: str, addresses: list[str], timeout: float) -> Mapping[str, str]:
        failures: Mapping[str, str] = cluster.connect(host).call(Method.REACH, addresses=addresses, timeout=timeout)[
            "failures"
        ]
        return failures

    def try_others(host: str) -> list[ConnectivityFailure]:
        addresses = list(dict.fromkeys(task.address for task in others[host]))
        failures = (dial or by_agent)(host, addresses, _DIAL_SECONDS)
        refused = partial(ConnectivityFailure, host, cluster.hosts[host].address)
        return [refused(task, failures[task.address]) for task in others[host] if task.address in failures]

    told, wrong = split(map_hosts([host for host in hosts if others[host]], try_others, _ANSWER_SECONDS))
    return [each for found in told.values() for each in found], wrong
