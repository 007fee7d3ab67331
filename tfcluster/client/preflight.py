"""The preflight: one sequence of checks for `up`, `scale`, their dry runs and `doctor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfcluster.client.checks import CheckResult, Severity, check_connectivity, check_each_host
from tfcluster.client.cluster import Cluster
from tfcluster.client.host_preflight import (
    HostPreflight,
    Progress,
    close_inspectors,
    no_progress,
    observe_hosts,
    prepare_hosts,
)
from tfcluster.client.snapshot import latest_topology
from tfcluster.core.reconcile import ObservedState, merge_with_observed
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ExitCode


@dataclass(frozen=True)
class Preflight:
    """The result of a preflight.

    Attributes:
        hosts: What was learned of each host.
        desired: The desired topology, merged with the observed one, with the ports and GPUs that the hosts allocated.
        observed: The observed state of the whole cluster; None if it is not running.
        results: The results of all checks.
    """

    hosts: Mapping[str, HostPreflight]
    desired: ClusterTopology
    observed: ObservedState | None
    results: Sequence[CheckResult]


def run_preflight(
    cluster: Cluster,
    hosts: Mapping[str, HostPreflight],
    choose_topology: Callable[[ObservedState | None], ClusterTopology],
) -> Preflight:
    """Check hosts for a topology, and have them allocate ports and GPUs.

    Args:
        cluster: The cluster.
        hosts: The hosts, as `observe_hosts` returned them.
        choose_topology: Returns the desired topology, given the observed state of the cluster (None if it is down).

    Raises:
        ClusterError: `choose_topology` raised it. A check that fails is a result.
    """
    observed = _merge([each.observed for each in hosts.values() if each.observed is not None])
    topology = choose_topology(observed)
    if observed is not None:
        topology = merge_with_observed(topology, observed)
    prepare_hosts(cluster, hosts, topology)
    for each in hosts.values():
        without_port = {task.name for task in (*topology.tasks, *topology.reserved) if not task.port}
        ports = {name: port for name, port in each.allocation.ports.items() if name in without_port}
        topology = topology.with_allocation(ports, each.allocation.gpus)
    results = [*check_each_host(topology, hosts), *check_connectivity(cluster, topology, hosts)]
    return Preflight(hosts, topology, observed, results)


def _merge(parts: Sequence[ObservedState]) -> ObservedState | None:
    """Merge the observed states of all hosts; if a change was not applied everywhere, take its latest topology."""
    if not parts:
        return None
    return ObservedState(
        topology=latest_topology([part.topology for part in parts]),
        tasks=tuple(task for part in parts for task in part.tasks),
        generations={task: number for part in parts for task, number in part.generations.items()},
        runs={run: tasks for part in parts for run, tasks in part.runs.items()},
    )


def check_hosts(topology: ClusterTopology, progress: Progress = no_progress) -> tuple[list[CheckResult], ExitCode]:
    """Run the preflight of all hosts of a topology, changing nothing there and running no command of the spec.

    Args:
        topology: The topology of a spec.
        progress: Called with the number of hosts examined so far, if there are several.

    Returns:
        The result of every check, and the exit code of `doctor`.
    """
    cluster = Cluster(topology.cluster, topology.hosts, topology.head().host)
    hosts = observe_hosts(cluster, dry=True, progress=progress)
    try:
        results = list(run_preflight(cluster, hosts, lambda observed: topology).results)
    finally:
        close_inspectors(hosts)
    order = [*hosts]
    results.sort(key=lambda result: order.index(result.host) if result.host in order else len(order))
    if any(result.exit_code is ExitCode.UNREACHABLE for result in results if result.severity is Severity.ERROR):
        return results, ExitCode.UNREACHABLE
    return results, ExitCode.DONE if all(result.is_ok for result in results) else ExitCode.FAILED
