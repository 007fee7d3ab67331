"""The preflight of `up`, `scale`, their dry runs and `doctor`: observe and check all hosts of a cluster in parallel.

Each host is examined by its agent. One that is started for this ends with the preflight, unless it gets a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import groupby

from tfcluster import settings
from tfcluster.client.cluster import Cluster, cluster_of
from tfcluster.client.preflight.checks import (
    AgentInspector,
    CheckResult,
    HostPreflight,
    Severity,
    check_each_host,
    failed_check,
)
from tfcluster.client.rpc.parallel import map_hosts, starting_host
from tfcluster.core.forwarding import forwarders_of, needs_forwarders, with_unique_ports
from tfcluster.core.hosts import Host
from tfcluster.core.reconcile import ObservedState, merge_observed, merge_with_observed
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.core.topology import ClusterTopology, join_address
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import authority_path
from tfcluster.protocol.api.cluster import LARGE_PACKETS_LOST, Preparation, ReachReply, ReachRequest

#: Called with the number of hosts examined so far and the number of all hosts.
Progress = Callable[[int, int], None]
_TLS_PORT = "TLS port"


@dataclass(frozen=True)
class Preflight:
    """The result of a preflight."""

    hosts: Mapping[str, HostPreflight]
    desired: ClusterTopology  # merged with the observed one, with the ports and GPUs that the hosts allocated
    observed: ObservedState | None  # of the whole cluster; None if it is not running
    results: Sequence[CheckResult]


def observe_hosts(cluster: Cluster, *, dry: bool, progress: Progress | None = None) -> dict[str, HostPreflight]:
    """Connect to every host of a cluster in parallel and observe its state; call `close_inspectors` on the result.

    This starts an agent on each host that has none.

    Args:
        dry: Change nothing of a cluster that is up, and do not run the setup commands that the spec lists for a host.
            Otherwise they are run, once.
        progress: Called with the number of hosts that are done, if there are several.
    """
    count = len(cluster.hosts)
    show = (lambda done: progress(done, count)) if progress is not None and count > 1 else None
    if show is not None:
        show(0)
    # No timeout here: the setup commands of a host may take any time, and each transport has timeouts of its own.
    observe = partial(_observe_host, cluster, dry)
    observed, errors = map_hosts(cluster.hosts, observe, None, show, HostPreflight.reach_problem)
    failed = {host: HostPreflight(problems=[_named("host", error)]) for host, error in errors.items()}
    observed |= failed
    return {host: observed[host] for host in cluster.hosts}


def _observe_host(cluster: Cluster, dry: bool, host: str) -> HostPreflight:
    client = cluster.connect(host)
    report = client.transport.examine(dry=dry)
    can_start = report is None or (report.has_packages and not report.problems)
    inspector = AgentInspector(client, dry=dry) if can_start else None
    result = HostPreflight(report, inspector)
    if report is not None:
        result.tensorflow, result.unexamined = report.tensorflow, report.unexamined
        result.problems = [_named("host", problem) for problem in report.problems]
    if inspector is not None:
        try:
            observation = inspector.observe()
            result.observed, result.certificate = observation.observed, observation.certificate
        except BaseException as error:
            inspector.close()
            if not isinstance(error, ClusterError):
                raise
            result.inspector, result.may_be_up = None, True
            result.problems.append(_named("tasks", error))
    return result


def _named(check: str, error: ClusterError) -> tuple[str, ClusterError]:
    return ("reach" if error.exit_code is ExitCode.UNREACHABLE else check), error


def prepare_hosts(hosts: Mapping[str, HostPreflight], topology: ClusterTopology) -> None:
    """Check every host for a topology, which is merged with the observed one, and add the results to the preflights."""
    examined = [host for host, each in hosts.items() if each.inspector is not None]

    def prepare(host: str) -> Preparation:
        each = hosts[host]
        assert each.inspector is not None, "the others are left out"
        with starting_host:
            return each.inspector.prepare(topology, listens=len(hosts) > 1 and each.observed is None)

    preparations, errors = map_hosts(examined, prepare, None)
    for host, error in errors.items():
        hosts[host].problems.append(_named("tasks", error))
    for host, preparation in preparations.items():
        _add_preparation(hosts[host], preparation)


def _add_preparation(result: HostPreflight, preparation: Preparation) -> None:
    result.is_examined = True
    result.tensorflow = preparation.tensorflow or result.tensorflow
    result.accounts = preparation.accounts
    result.python, result.psutil_problem = preparation.python, preparation.psutil_problem
    result.cores, result.cpu_quota = preparation.cores, preparation.cpu_quota
    result.allocation = preparation.allocation
    for failure in preparation.problems:
        failed = result.warnings if failure.is_warning else result.problems
        failed.append((failure.check, failure.error))


def find_changed_hosts(hosts: Mapping[str, HostPreflight]) -> list[str]:
    """Return the hosts whose state has changed since they were observed, because of another command.

    A check that fails then says nothing of the host: when tasks start there, for example, the agent no longer answers
    those who check whether they can connect to it.
    """

    def has_changed(host: str) -> bool:
        inspector = hosts[host].inspector
        return inspector is not None and inspector.has_changed(hosts[host].observed)

    replies, _ = map_hosts(hosts, has_changed, settings.HOST_TIMEOUT_SECONDS)
    return [host for host, changed in replies.items() if changed]


def close_inspectors(hosts: Mapping[str, HostPreflight]) -> None:
    """End what was started on the hosts for the preflight; agents that have got a cluster since keep running."""
    inspectors = {host: each.inspector for host, each in hosts.items() if each.inspector is not None}
    map_hosts(inspectors, lambda host: inspectors[host].close(), settings.PREFLIGHT_EXIT_SECONDS)


def abort(cluster: Cluster, hosts: Mapping[str, HostPreflight]) -> None:
    """End a preflight after which nothing is applied, and disconnect from hosts on which the cluster is not up."""
    close_inspectors(hosts)
    down = [host for host, each in hosts.items() if each.observed is None and not each.may_be_up]
    map_hosts(down, lambda host: cluster.connect(host).transport.disconnect(), settings.PREFLIGHT_EXIT_SECONDS)


def run_preflight(
    cluster: Cluster,
    hosts: Mapping[str, HostPreflight],
    choose_topology: Callable[[ObservedState | None], ClusterTopology],
) -> Preflight:
    """Check hosts for a topology, and have them allocate ports and GPUs.

    `choose_topology` returns the desired topology, given the observed state of the cluster (None if it is down). What
    it raises is raised here, too; a check that fails is a result.
    """
    observed = merge_observed([each.observed for each in hosts.values() if each.observed is not None])
    topology = choose_topology(observed)
    if observed is not None:
        topology = merge_with_observed(topology, observed)
    if needs_forwarders(topology):
        topology = with_unique_ports(topology, observed.topology if observed else None)
    prepare_hosts(hosts, topology)
    for host, each in hosts.items():
        without_port = {task.name for task in (*topology.tasks, *topology.reserved) if not task.port}
        ports = {name: port for name, port in each.allocation.ports.items() if name in without_port}
        topology = topology.with_allocation(ports, each.allocation.gpus)
        topology = topology.with_tls_port(host, each.allocation.tls_port)
    results = [*check_each_host(topology, hosts), *check_connectivity(cluster, topology, hosts)]
    return Preflight(hosts, topology, observed, results)


def hosts_without_certificate(topology: ClusterTopology, hosts: Mapping[str, HostPreflight]) -> list[str]:
    """Return the hosts that need a certificate.

    They have none, it ends soon, or it is of an authority that is not known here.
    """
    if not needs_forwarders(topology):
        return []
    try:
        authority = authority_path(topology.cluster).read_text()
    except (OSError, UnicodeDecodeError):
        authority = ""
    earliest = time.time() + timedelta(days=settings.CERTIFICATE_DAYS / 10).total_seconds()

    def is_good(each: HostPreflight) -> bool:
        own = each.certificate
        return own is not None and own.authority in authority and own.until > earliest

    asked = {host: each for host, each in hosts.items() if each.inspector is not None}
    return [host.name for host in topology.hosts if host.name in asked and not is_good(asked[host.name])]


def check_hosts(topology: ClusterTopology, progress: Progress | None = None) -> tuple[list[CheckResult], ExitCode]:
    """Run the preflight of all hosts of a topology, as a dry run of `up` does.

    Return the result of every check, and the exit code of `doctor`. `progress` is called with the number of hosts
    examined so far, if there are several.
    """
    cluster = cluster_of(topology)
    for remaining_attempts in reversed(range(settings.PLANS_MAX)):
        hosts = observe_hosts(cluster, dry=True, progress=progress)
        try:
            preflight = run_preflight(cluster, hosts, lambda observed: topology)
            has_failed = any(result.severity is Severity.ERROR for result in preflight.results)
            is_outdated = has_failed and bool(find_changed_hosts(hosts))
        finally:
            abort(cluster, hosts)
        if not (is_outdated and remaining_attempts):
            break
    results = [*preflight.results, *firewall_rules(preflight.desired)]
    order = {host: number for number, host in enumerate(hosts)}
    results.sort(key=lambda result: order.get(result.host, len(order)))
    if any(result.exit_code is ExitCode.UNREACHABLE for result in results if result.severity is Severity.ERROR):
        return results, ExitCode.UNREACHABLE
    return results, ExitCode.DONE if all(result.is_ok for result in results) else ExitCode.FAILED


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
    """Check that the hosts can connect to each other's tasks, on whose ports agents listen during the check.

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

    def connect(host: str) -> ReachReply:
        inspector = hosts[host].inspector
        assert inspector is not None, "the others are left out"
        addresses = tuple(dict.fromkeys(port.address for port in tried[host]))
        # One of a host's ports is enough for what is the same for all of them. A forwarder that runs does not answer.
        first = {port.host: port.address for port in reversed(tried[host]) if not hosts[port.host].observed}
        return inspector.reach(ReachRequest(addresses, settings.CONNECTIVITY_CONNECT_SECONDS, tuple(first.values())))

    replies, errors = map_hosts(tried, connect, settings.CONNECTIVITY_REPLY_SECONDS)
    failures = {host: reply.failures for host, reply in replies.items()}
    sources = {host: sorted({*reply.sources.values()}) for host, reply in replies.items() if reply.sources}
    checked = {host: each for host, each in cluster.hosts.items() if host in ports}
    passed = [host for host in replies if not failures[host] and host not in sources]
    return [
        *(failed_check(host, "network", error) for host, error in errors.items()),
        *summarize_failures({host: tried[host] for host in replies}, failures, checked),
        *(_comes_from_elsewhere(host, checked[host].address, seen) for host, seen in sources.items()),
        *(_reaches_all(host, tried[host], len(ports) - 1) for host in passed),
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
    tried: Mapping[str, Sequence[Port]], failures: Mapping[str, Mapping[str, str]], hosts: Mapping[str, Host]
) -> Iterator[CheckResult]:
    """Yield the failed connections, grouped by a host and the reason, the largest groups first.

    The host is the one that was connected to, unless the one that connected has more failures of this reason.

    Args:
        tried: The ports that each host tried to connect to.
        failures: By host, the reason of each failed connection by its address.
        hosts: Each host that tried, or was tried, by its name.
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
            yield _cannot_reach(left, 0 if len(groups[key]) < len(tried[host]) else sizes[key], hosts[host])
        elif left:
            # If nobody reached the host, the rule is for all others, those that have not tried included.
            sources = {each.source for each in left} if host in reached else hosts.keys() - {host}
            yield _cannot_be_reached(
                left, [each.address for name, each in hosts.items() if name in sources], hosts[host]
            )


def _comes_from_elsewhere(host: str, address: str, seen: Sequence[str]) -> CheckResult:
    """Return the result for a host whose connections the ports of the others would not admit."""
    name = f"`address: {seen[0]}`" if len(seen) == 1 else "`address:` to a name that stands for all of these addresses"
    return CheckResult(
        host,
        "network",
        Severity.ERROR,
        f"connections from {host} come from {' and '.join(seen)}, not from {address}: the other hosts refuse them",
        f"Set {name} for {host} in the spec. If {seen[0]} is a router between the hosts (NAT): `network: private`.",
    )


def _compare_mtu(hosts: Iterable[str]) -> str:
    """Return the hint for hosts of whose packets the large ones are lost on the way."""
    return (
        f"Compare the MTU of {', '.join(dict.fromkeys(hosts))} and of what is between them: `ip link` shows it. With a "
        "tunnel or VPN on the way, lower it on the hosts, or let ICMP pass."
    )


def _cannot_be_reached(failures: Sequence[_Failure], allowed: Sequence[str], target: Host) -> CheckResult:
    sources = summarize_list(list(dict.fromkeys(each.source for each in failures)))
    ports = list(dict.fromkeys(each.port for each in failures))
    places = summarize_list([f"{port.address} ({port.what})" for port in ports])
    numbers = [port.number for port in ports]
    if failures[0].reason == LARGE_PACKETS_LOST:
        hint = _compare_mtu([target.name, *(each.source for each in failures)])
    elif target.connect is None:
        rules = ", ".join(_rules(allowed, numbers))
        hint = f"A firewall is probably blocking the connection, perhaps the one on {target.name}. "
        hint += f"To allow it, run there: {rules} ({ports[0].advice})."
    else:
        hint = "A firewall or a network policy is probably blocking the connection: "
        hint += f"{_describe_rule(allowed, numbers)} ({ports[0].advice})."
    message = f"host {target.name!r} cannot be reached from {sources} at {places}: {failures[0].reason}"
    return CheckResult(target.name, "network", Severity.ERROR, message, hint)


def _cannot_reach(failures: Sequence[_Failure], tried: int, source: Host) -> CheckResult:
    """Return the result for a host that connects to none of the hosts that it tried; to some, if `tried` is 0."""
    port = failures[0].port
    targets = summarize_list(list(dict.fromkeys(each.port.host for each in failures)))
    what = f"reaches none of the hosts that it tried ({tried})" if tried else f"cannot reach {targets}"
    if failures[0].reason == LARGE_PACKETS_LOST:
        hint = _compare_mtu([source.name, *(each.port.host for each in failures)])
    elif source.connect is None:
        hint = f"There, `ip route get {port.address.rpartition(':')[0].strip('[]')}` shows the route to {port.host}, "
        hint += "`sudo iptables -S OUTPUT` its own firewall."
    else:
        hint = f"Look for a firewall or a network policy between {source.name} and {port.host}, and at the route."
    message = f"host {source.name!r} {what}: {failures[0].reason}"
    return CheckResult(source.name, "network", Severity.ERROR, message, hint)


def _reaches_all(host: str, ports: Sequence[Port], others: int) -> CheckResult:
    what = "TLS port" if ports[0].what == _TLS_PORT else "tasks"
    count = len({port.host for port in ports})
    which = pluralize(count, "other host") if count == others else f"the {count} other hosts that it tried, of {others}"
    return CheckResult(host, "network", Severity.OK, f"reaches the {what} of {which}")


def firewall_rules(topology: ClusterTopology) -> list[CheckResult]:
    """Return a note on each host of a private cluster that says which rule its firewall needs."""
    results = []
    hosts = {host.name: host for host in topology.hosts}
    for host, own in forwarders_of(topology).items():
        others = [each.address for name, each in hosts.items() if name != host]
        text = f"the other hosts connect to its port {own.port} alone"
        if hosts[host].connect is None:
            hint = f"If it has a firewall: {', '.join(_rules(others, [own.port]))} ({_private_advice(own.port)})."
        else:
            rule = _describe_rule(others, [own.port])
            hint = f"If a firewall or a network policy protects it: {rule} ({_private_advice(own.port)})."
        results.append(CheckResult(host, "firewall", Severity.NOTE, text, hint))
    return results


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


def _ranges(ports: Iterable[int], between: str) -> list[str]:
    """Return the ranges of successive ports."""
    ranges = []
    for _, group in groupby(enumerate(sorted(set(ports))), lambda place: place[1] - place[0]):
        numbers = [port for _, port in group]
        ranges.append(f"{numbers[0]}{between}{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}")
    return ranges


def _describe_rule(sources: Sequence[str], ports: Iterable[int]) -> str:
    """Return what to allow for a host that may be a container, which has no firewall of its own."""
    return f"allow TCP from {', '.join(sources)} to its port {', '.join(_ranges(ports, '-'))}"


def _rules(sources: Sequence[str], ports: Sequence[int]) -> list[str]:
    """Return the rules that open ports to hosts, one for each range of successive ports."""
    return [
        f"`sudo {program} -I INPUT -p tcp -s {','.join(addresses)} --dport {each} -j ACCEPT`"
        for program, is_ipv6 in (("iptables", False), ("ip6tables", True))
        if (addresses := [source for source in sources if (":" in source) is is_ipv6])
        for each in _ranges(ports, ":")
    ]
