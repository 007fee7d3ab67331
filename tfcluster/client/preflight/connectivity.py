"""The check of a preflight that a cluster's hosts can connect to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.preflight.checks import CheckResult, Severity, failed_check
from tfcluster.client.rpc.parallel import map_hosts, partition
from tfcluster.core.forwarding import forwarders_of, needs_forwarders
from tfcluster.core.text import pluralize
from tfcluster.core.topology import ClusterTopology, join_address

if TYPE_CHECKING:
    from tfcluster.client.preflight.host_preflight import HostPreflight


def check_connectivity(
    cluster: Cluster, topology: ClusterTopology, hosts: Mapping[str, HostPreflight]
) -> list[CheckResult]:
    """Check that the hosts can connect to each other's tasks, on whose ports agents or probes listen meanwhile.

    Hosts whose servers run already are left out, as their restricted ports do not accept new members. In a private
    cluster only the port of each host's forwarder matters, which also accepts connections while it runs.

    Every port of the desired topology must be allocated.
    """
    is_private = needs_forwarders(topology)
    examined = [
        host
        for host, each in hosts.items()
        if each.inspector is not None and not each.problems and each.is_examined and (is_private or not each.observed)
    ]
    if len(examined) < 2 or all(hosts[host].observed for host in examined):
        return []
    ports = _private_ports if is_private else _task_ports
    peers = {
        host: [port for other in examined if other != host for port in ports(topology, other)] for host in examined
    }

    def connect(host: str) -> Mapping[str, str]:
        inspector = hosts[host].inspector
        assert inspector is not None, "the others are left out"
        return inspector.failures(
            list(dict.fromkeys(port.address for port in peers[host])), settings.CONNECTIVITY_CONNECT_SECONDS
        )

    failures, errors = partition(
        map_hosts([host for host in examined if peers[host]], connect, settings.CONNECTIVITY_REPLY_SECONDS)
    )
    results = [failed_check(host, "network", error) for host, error in errors.items()]
    for host, reasons in failures.items():
        source = cluster.hosts[host].address
        results += [
            _cannot_connect(host, source, port, reasons[port.address])
            for port in peers[host]
            if port.address in reasons
        ]
        if not reasons:
            what = "TLS port" if is_private else "tasks"
            text = f"reaches the {what} of {pluralize(len(examined) - 1, 'other host')}"
            results.append(CheckResult(host, "network", Severity.OK, text))
    return results


def firewall_rules(topology: ClusterTopology) -> list[CheckResult]:
    """Return a note on each host of a private cluster that says which rule its firewall needs."""
    results = []
    for host, own in forwarders_of(topology).items():
        rule = _rule([each.address for each in topology.hosts if each.name != host], own.port)
        text = f"the other hosts connect to its port {own.port} alone"
        hint = f"If it has a firewall: {rule} ({_private_advice(own.port)})."
        results.append(CheckResult(host, "firewall", Severity.NOTE, text, hint))
    return results


@dataclass(frozen=True)
class _Port:
    """A port that other hosts connect to."""

    host: str
    what: str  # what listens there
    address: str  # with the port
    advice: str  # how the port stays the same for a rule of a firewall


def _task_ports(topology: ClusterTopology, host: str) -> list[_Port]:
    advice = "with fixed ports in the spec the rule holds for the next `up` too"
    return [_Port(host, task.short, task.address, advice) for task in topology.on(host)]


def _private_ports(topology: ClusterTopology, host: str) -> list[_Port]:
    place = forwarders_of(topology).get(host)
    if place is None:
        return []
    return [_Port(host, "the TLS port", join_address(place.address, place.port), _private_advice(place.port))]


def _private_advice(port: int) -> str:
    return f"with `tls_port: {port}` for the host in the spec, the rule holds for the next `up` too"


def _rule(sources: Sequence[str], port: int) -> str:
    return f"`sudo iptables -I INPUT -p tcp -s {','.join(sources)} --dport {port} -j ACCEPT`"


def _cannot_connect(host: str, source: str, port: _Port, reason: str) -> CheckResult:
    rule = _rule([source], int(port.address.rpartition(":")[2]))
    return CheckResult(
        host,
        "network",
        Severity.ERROR,
        f"cannot reach {port.what} at {port.address} on {port.host}: {reason}",
        f"A firewall is in between, perhaps that of {port.host}; there: {rule} ({port.advice}).",
    )
