"""The preflight of `up`, `scale`, their dry runs and `doctor`: observe and check all hosts of a cluster in parallel.

A host is examined through its agent or, in a dry run, through a probe that changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from tfcluster import settings
from tfcluster.client.cluster import Cluster, cluster_of
from tfcluster.client.preflight.checks import (
    CheckResult,
    Severity,
    check_each_host,
)
from tfcluster.client.preflight.connectivity import check_connectivity, firewall_rules
from tfcluster.client.preflight.host_preflight import AgentInspector, HostPreflight
from tfcluster.client.rpc.parallel import map_hosts, partition, starting_host
from tfcluster.core.forwarding import needs_forwarders, with_unique_ports
from tfcluster.core.hosts import ENV_NOTE
from tfcluster.core.reconcile import ObservedState, merge_observed, merge_with_observed
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import authority_path
from tfcluster.protocol.api.cluster import Preparation

if TYPE_CHECKING:
    from tfcluster.transport.dry_run_probe import Probe

#: Called with the number of hosts examined so far and the number of all hosts.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Preflight:
    """The result of a preflight."""

    hosts: Mapping[str, HostPreflight]
    desired: ClusterTopology  # merged with the observed one, with the ports and GPUs that the hosts allocated
    observed: ObservedState | None  # of the whole cluster; None if it is not running
    results: Sequence[CheckResult]


def observe_hosts(cluster: Cluster, *, dry: bool, progress: Progress | None = None) -> dict[str, HostPreflight]:
    """Connect to every host of a cluster in parallel and observe its state; call `close_inspectors` on the result.

    Args:
        dry: Change nothing on any host. Otherwise this runs the setup commands that the spec lists for a host, once,
            and starts an agent on each host that has none.
        progress: Called with the number of hosts that are done, if there are several.
    """
    count = len(cluster.hosts)
    show = (lambda done: progress(done, count)) if progress is not None and count > 1 else None
    if show is not None:
        show(0)
    # No timeout here: the setup commands of a host may take any time, and each transport has timeouts of its own.
    outcomes = map_hosts(cluster.hosts, partial(_observe_host, cluster, dry), None, show, HostPreflight.reach_problem)
    return {
        host: HostPreflight(problems=[_named("host", each)]) if isinstance(each, ClusterError) else each
        for host, each in outcomes.items()
    }


def _observe_host(cluster: Cluster, dry: bool, host: str) -> HostPreflight:
    client = cluster.connect(host)
    inspector: AgentInspector | Probe | None
    if dry:
        report, inspector = client.transport.probe()
    else:
        report = client.transport.examine()
        inspector = None if report is not None and report.problems else AgentInspector(client)
    result = HostPreflight(report, inspector)
    if report is not None:
        result.tensorflow, result.unexamined = report.tensorflow, list(report.unexamined)
        result.problems = [_named("host", problem) for problem in report.problems]
    if inspector is not None:
        try:
            observation = inspector.observe()
            result.observed, result.certificate = observation.observed, observation.certificate
        except BaseException as error:
            inspector.close()
            if not isinstance(error, ClusterError):
                raise
            result.inspector = None
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

    preparations, errors = partition(map_hosts(examined, prepare, None))
    for host, error in errors.items():
        hosts[host].problems.append(_named("tasks", error))
    for host, preparation in preparations.items():
        _add_preparation(hosts[host], preparation)


def _add_preparation(result: HostPreflight, preparation: Preparation) -> None:
    result.is_examined = True
    result.tensorflow = preparation.tensorflow or result.tensorflow
    result.accounts = preparation.accounts
    result.allocation = preparation.allocation
    if result.observed is not None:  # the running agent has checked everything, with the spec's environment variables
        result.unexamined = [note for note in result.unexamined if not note.startswith(ENV_NOTE)]
    # The spec's environment variables may provide what a library is missing (as LD_LIBRARY_PATH does).
    lacks_variables = any(note.startswith(ENV_NOTE) for note in result.unexamined)
    for failure in preparation.problems:
        if failure.check == "tensorflow" and lacks_variables:
            result.unexamined.append(f"{failure.error.message}; `env:` might change that: not checked")
        else:
            result.problems.append((failure.check, failure.error))


def close_inspectors(hosts: Mapping[str, HostPreflight]) -> None:
    """End what was started on the hosts for the preflight; agents that have got a cluster since keep running."""
    inspectors = {host: each.inspector for host, each in hosts.items() if each.inspector is not None}
    map_hosts(inspectors, lambda host: inspectors[host].close(), settings.PREFLIGHT_EXIT_SECONDS)


def abort(cluster: Cluster, hosts: Mapping[str, HostPreflight]) -> None:
    """End a preflight after which nothing is applied, and disconnect from hosts on which the cluster is not up."""
    close_inspectors(hosts)
    down = [host for host, each in hosts.items() if each.observed is None]
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
    """Return the hosts that need a certificate: they have none, it ends soon, or it is of an authority not known here.

    In a dry run, which cannot ask for certificates, no host needs one.
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

    asked = {host: each for host, each in hosts.items() if isinstance(each.inspector, AgentInspector)}
    return [host.name for host in topology.hosts if host.name in asked and not is_good(asked[host.name])]


def check_hosts(topology: ClusterTopology, progress: Progress | None = None) -> tuple[list[CheckResult], ExitCode]:
    """Run the preflight of all hosts of a topology, changing nothing there and running no command of the spec.

    Return the result of every check, and the exit code of `doctor`. `progress` is called with the number of hosts
    examined so far, if there are several.
    """
    cluster = cluster_of(topology)
    hosts = observe_hosts(cluster, dry=True, progress=progress)
    try:
        preflight = run_preflight(cluster, hosts, lambda observed: topology)
    finally:
        close_inspectors(hosts)
    results = [*preflight.results, *firewall_rules(preflight.desired)]
    order = {host: number for number, host in enumerate(hosts)}
    results.sort(key=lambda result: order.get(result.host, len(order)))
    if any(result.exit_code is ExitCode.UNREACHABLE for result in results if result.severity is Severity.ERROR):
        return results, ExitCode.UNREACHABLE
    return results, ExitCode.DONE if all(result.is_ok for result in results) else ExitCode.FAILED
