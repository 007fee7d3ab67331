"""The check of the connections between the hosts: which host tries which, and what the failures have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.preflight.checks import CheckResult, Severity, failed_check
from tfcluster.client.preflight.host_preflight import HostPreflight
from tfcluster.client.rpc.parallel import map_hosts, partition
from tfcluster.core.forwarding import forwarders_of, needs_forwarders
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.core.topology import ClusterTopology, join_address


@dataclass(frozen=True)
class Port:
    """A port that other hosts connect to."""

    host: str
    what: str  # what listens there
    address: str  # with the port
    advice: str  # how the port stays the same for a rule of a firewall

    @property
    def number(self) -> int:
        """Return the port's number."""
        return int(self.address.rpartition(":")[2])


def check_connectivity(
    cluster: Cluster, topology: ClusterTopology, hosts: Mapping[str, HostPreflight]
) -> list[CheckResult]:
    """Check that the hosts can connect to each other's tasks, on whose ports agents or probes listen meanwhile.

    Hosts whose servers run already are left out, as their restricted ports do not accept new members. In a private
    cluster only the port of each host's forwarder matters, which also accepts connections while it runs.

    Every port of the desired topology must be allocated.
    """
    is_private = needs_forwarders(topology)
    find_ports = _private_ports if is_private else _task_ports
    ports = {
        host: find_ports(topology, host)
        for host, each in hosts.items()
        if each.inspector is not None and not each.problems and each.is_examined and (is_private or not each.observed)
    }
    ports = {host: each for host, each in ports.items() if each}
    if len(ports) < 2 or all(hosts[host].observed for host in ports):
        return []
    tried = {host: [port for peer in peers for port in ports[peer]] for host, peers in choose_peers([*ports]).items()}

    def connect(host: str) -> Mapping[str, str]:
        inspector = hosts[host].inspector
        assert inspector is not None, "the others are left out"
        return inspector.failures(
            list(dict.fromkeys(port.address for port in tried[host])), settings.CONNECTIVITY_CONNECT_SECONDS
        )

    failures, errors = partition(map_hosts(tried, connect, settings.CONNECTIVITY_REPLY_SECONDS))
    answered = {host: tried[host] for host in failures}
    addresses = {host: cluster.hosts[host].address for host in ports}
    return [
        *(failed_check(host, "network", error) for host, error in errors.items()),
        *summarize_failures(answered, failures, addresses),
        *(_reaches_all(host, answered[host], len(ports) - 1) for host, reasons in failures.items() if not reasons),
    ]


def choose_peers(hosts: Sequence[str]) -> dict[str, list[str]]:
    """Choose which others each host tries: all of them or, of many hosts, those 1, 2, 4, 8 … places after it.

    Every host is tried by as many others as it tries itself.
    """
    count = len(hosts)
    if count <= settings.CONNECTIVITY_ALL_PAIRS_HOSTS:
        strides = list(range(1, count))
    else:
        strides = [1 << power for power in range((count - 1).bit_length())]
    return {host: [hosts[(place + stride) % count] for stride in strides] for place, host in enumerate(hosts)}


@dataclass(frozen=True)
class _Failure:
    """A connection that failed."""

    source: str  # the host that tried to connect
    port: Port
    reason: str


def summarize_failures(
    tried: Mapping[str, Sequence[Port]], failures: Mapping[str, Mapping[str, str]], addresses: Mapping[str, str]
) -> Iterator[CheckResult]:
    """Yield the failed connections, grouped by a host and the reason, the largest groups first.

    The host is the one that was connected to, unless the one that connected has more failures of this reason.

    Args:
        tried: The ports that each host tried to connect to.
        failures: By host, the reason of each failed connection by its address.
        addresses: The address of each host.
    """
    groups: dict[tuple[bool, str, str], list[_Failure]] = {}  # by whether the host is the one that connected
    reached = set()
    for source, ports in tried.items():
        for port in ports:
            reason = failures[source].get(port.address)
            if reason is None:
                reached.add(port.host)
                continue
            failure = _Failure(source, port, reason)
            groups.setdefault((False, port.host, reason), []).append(failure)
            groups.setdefault((True, source, reason), []).append(failure)
    reported: set[_Failure] = set()
    sizes = {key: len({(each.source, each.port.host) for each in group}) for key, group in groups.items()}
    for key in sorted(groups, key=lambda key: (-sizes[key], key[0])):
        left = [each for each in groups[key] if each not in reported]
        reported.update(left)
        is_source, host, _ = key
        if left and is_source:
            yield _cannot_reach(left, 0 if len(groups[key]) < len(tried[host]) else sizes[key])
        elif left:
            # If nobody reached the host, the rule is for all others, those that have not tried included.
            sources = {each.source for each in left} if host in reached else addresses.keys() - {host}
            yield _cannot_be_reached(left, [address for name, address in addresses.items() if name in sources])


def _cannot_be_reached(failures: Sequence[_Failure], allowed: Sequence[str]) -> CheckResult:
    sources = summarize_list(list(dict.fromkeys(each.source for each in failures)))
    ports = list(dict.fromkeys(each.port for each in failures))
    places = summarize_list([f"{port.address} ({port.what})" for port in ports])
    rules = ", ".join(_rules(allowed, [port.number for port in ports]))
    host = ports[0].host
    return CheckResult(
        host,
        "network",
        Severity.ERROR,
        f"host {host!r} cannot be reached from {sources} at {places}: {failures[0].reason}",
        f"A firewall is probably blocking the connection, perhaps the one on {host}. "
        f"To allow it, run there: {rules} ({ports[0].advice}).",
    )


def _cannot_reach(failures: Sequence[_Failure], tried: int) -> CheckResult:
    """Return the result for a host that connects to none of the hosts that it tried; to some, if `tried` is 0."""
    host, port = failures[0].source, failures[0].port
    targets = summarize_list(list(dict.fromkeys(each.port.host for each in failures)))
    what = f"reaches none of the hosts that it tried ({tried})" if tried else f"cannot reach {targets}"
    return CheckResult(
        host,
        "network",
        Severity.ERROR,
        f"host {host!r} {what}: {failures[0].reason}",
        f"There, `ip route get {port.address.rpartition(':')[0].strip('[]')}` shows the route to {port.host}, "
        "`sudo iptables -S OUTPUT` its own firewall.",
    )


def _reaches_all(host: str, ports: Sequence[Port], others: int) -> CheckResult:
    what = "TLS port" if ports[0].what == _TLS_PORT else "tasks"
    count = len({port.host for port in ports})
    which = pluralize(count, "other host") if count == others else f"the {count} other hosts that it tried, of {others}"
    return CheckResult(host, "network", Severity.OK, f"reaches the {what} of {which}")


def firewall_rules(topology: ClusterTopology) -> list[CheckResult]:
    """Return a note on each host of a private cluster that says which rule its firewall needs."""
    results = []
    for host, own in forwarders_of(topology).items():
        (rule,) = _rules([each.address for each in topology.hosts if each.name != host], [own.port])
        text = f"the other hosts connect to its port {own.port} alone"
        hint = f"If it has a firewall: {rule} ({_private_advice(own.port)})."
        results.append(CheckResult(host, "firewall", Severity.NOTE, text, hint))
    return results


_TLS_PORT = "TLS port"


def _task_ports(topology: ClusterTopology, host: str) -> list[Port]:
    advice = "with fixed ports in the spec the rule applies to the next `up` too"
    return [Port(host, task.short, task.address, advice) for task in topology.on(host)]


def _private_ports(topology: ClusterTopology, host: str) -> list[Port]:
    place = forwarders_of(topology).get(host)
    if place is None:
        return []
    return [Port(host, _TLS_PORT, join_address(place.address, place.port), _private_advice(place.port))]


def _private_advice(port: int) -> str:
    return f"with `tls_port: {port}` for the host in the spec, the rule applies to the next `up` too"


def _rules(sources: Sequence[str], ports: Iterable[int]) -> list[str]:
    """Return the rules that open ports to hosts, one for each range of successive ports."""
    ranges = []
    for _, group in groupby(enumerate(sorted(set(ports))), lambda place: place[1] - place[0]):
        numbers = [port for _, port in group]
        ranges.append(f"{numbers[0]}:{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}")
    return [f"`sudo iptables -I INPUT -p tcp -s {','.join(sources)} --dport {each} -j ACCEPT`" for each in ranges]
