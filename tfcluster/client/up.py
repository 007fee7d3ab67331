"""Plan `up` and `scale` (the first half of reconcile): run the preflight, compare observed and desired state, plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfcluster import settings
from tfcluster.client import registry
from tfcluster.client.cluster import Cluster
from tfcluster.client.connectivity import check_connectivity
from tfcluster.client.dry_preflight import probe_hosts, release, topology_of
from tfcluster.client.output import tell
from tfcluster.client.parallel import map_hosts, split
from tfcluster.client.preflight import HostPreflight, Progress, abort, examine, no_progress
from tfcluster.client.preflight_errors import (
    ACCOUNTS_HINT,
    PreflightProblem,
    accounts_note,
    clock_warning,
    different_versions,
    refused_connections,
    told,
)
from tfcluster.client.snapshot import latest_topology
from tfcluster.core.hosts import THIS_MACHINE, Host
from tfcluster.core.plan import PlannedAction, data_losses, plan
from tfcluster.core.reconcile import ObservedState, onto, scaled
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import journal_path
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.transport import local
from tfcluster.transport.base import not_running

#: The note for a host on which no probe process could be started.
UNEXAMINED_TASKS = "its ports, GPUs, addresses and folders: not examined, as that takes its Python with all packages"


@dataclass(frozen=True)
class UpPlan:
    """The plan of `up` or `scale`, with the preflight results that it is based on.

    Attributes:
        cluster: The cluster with the hosts that it will have.
        everywhere: The cluster with these hosts and those that are removed from it.
        leaving: The cluster with the hosts that are removed from it; None if there are none.
        wanted: The desired topology.
        base: The topology of the running cluster, from which the plan starts; None if none is running.
        topology: The desired topology with every port allocated.
        operations: The planned actions.
        examined: The preflight result of each host, including the removed ones.
    """

    cluster: Cluster
    everywhere: Cluster
    leaving: Cluster | None
    wanted: ClusterTopology
    base: ClusterTopology | None
    topology: ClusterTopology
    operations: tuple[PlannedAction, ...]
    examined: Mapping[str, HostPreflight]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        operations = [operation.to_json() for operation in self.operations]
        versions = sorted({each.tensorflow for each in self.examined.values() if each.tensorflow})
        return {
            "cluster": self.topology.cluster,
            "tensorflow": ", ".join(versions),
            "operations": operations,
            "lost": data_losses(self.operations),
            "not_examined": [{"host": host, "what": what} for host, what in unexamined(self.examined)],
        }


def begin() -> None:
    """Prestart an agent while the spec is still being read; it has no effect if no `prepare` follows."""
    local.begin()


def prepare(wanted: ClusterTopology, *, dry: bool, progress: Progress = no_progress, mixed: bool = False) -> UpPlan:
    """Run the preflight of all hosts and plan; this starts no task, but agents on the hosts that have none.

    Args:
        wanted: The topology of the spec.
        dry: Change nothing on any host, start no agent, and run no command of the spec.
        progress: Called with the number of hosts examined so far, if there are several.
        mixed: Allow hosts with different versions of TensorFlow.

    Returns:
        The plan.

    Raises:
        ClusterError: The hosts cannot run the cluster; the message lists every problem of every host.
    """
    before = _hosts_before(wanted)
    cluster = Cluster(wanted.cluster, wanted.hosts, wanted.head().host)
    gone = tuple(host for host in before if host.name not in cluster.hosts)
    everywhere = Cluster(wanted.cluster, (*wanted.hosts, *gone), cluster.head)
    examined = (probe_hosts if dry else examine)(everywhere, wanted, progress=progress)
    try:
        _pass_over(gone, examined)
        for host, what in unexamined(examined):
            tell(f"host {host!r}: {what}")
        _refuse_problems(examined, mixed=mixed, alone=everywhere.is_here)
        found, topology, operations = planned(wanted, examined)
        fresh = [host for host in cluster.hosts if examined[host].found is None]
        if not dry and (problems := refused_connections(*check_connectivity(everywhere, topology, fresh))):
            raise told(problems, alone=False)
    except BaseException:
        if not dry:
            abort(everywhere, examined)
        raise
    finally:
        release(examined)
    leaving = Cluster(wanted.cluster, gone, gone[0].name) if gone else None
    base = found.topology if found else None
    return UpPlan(cluster, everywhere, leaving, wanted, base, topology, operations, examined)


def unexamined(examined: Mapping[str, HostPreflight]) -> list[tuple[str, str]]:
    """List what could not be examined without changing a host.

    Returns:
        Pairs of a host and a note that says what was not examined and why.
    """
    found = []
    for host, each in examined.items():
        found += [(host, what) for what in each.unexamined]
        if not each.is_whole and not each.problems:
            found.append((host, UNEXAMINED_TASKS))
    return found


def _pass_over(gone: Iterable[Host], examined: dict[str, HostPreflight]) -> None:
    """Skip removed hosts that cannot be reached, with a message: the cluster needs nothing from them but their end."""
    for host in gone:
        for problem in examined[host.name].problems:
            if problem.exit_code is ExitCode.UNREACHABLE:
                tell(f"{problem.message}: what the cluster has there stays until `tfcluster down`")
                del examined[host.name]
                break


def _refuse_problems(examined: Mapping[str, HostPreflight], *, mixed: bool, alone: bool) -> None:
    """Raise the problems of the preflight, or print its warnings and notes if there are none.

    Raises:
        ClusterError: A problem prevents the cluster from coming up.
    """
    problems = [PreflightProblem(host, each) for host, found in examined.items() for each in found.problems]
    if not mixed:
        problems += different_versions(examined)
    if problems:
        raise told(problems, alone=alone)
    for host, each in examined.items():
        if (warning := clock_warning(each)) is not None:
            tell(f"warning: host {host!r}: {warning}")
        # Print this note only when servers are started on the host: users do not read a note that every command
        # repeats. `doctor` always prints it.
        if each.accounts is not None and each.found is None:
            where = "this machine" if alone else f"host {host!r}"
            tell(f"note: {where}: {accounts_note(each.accounts, alone=alone)}. {ACCOUNTS_HINT}")


def prepare_scaled(
    cluster: Cluster, counts: Mapping[str, int], *, dry: bool, progress: Progress = no_progress
) -> UpPlan:
    """Plan to scale jobs of a running cluster to another number of tasks.

    Args:
        cluster: The cluster.
        counts: The desired number of tasks, by job.
        dry: Change nothing on any host, as this is a dry run.
        progress: Called with the number of hosts examined so far, if there are several.

    Returns:
        The plan.

    Raises:
        ClusterError: The cluster is not running or cannot have that many tasks, or a host cannot be reached.
    """

    def ask(host: str) -> ClusterTopology:
        if dry:
            return topology_of(cluster, host)
        return cluster.connect(host).call(TopologyRequest(settled=True))

    topologies, wrong = split(map_hosts(cluster.hosts, ask, settings.TOPOLOGY_TIMEOUT_SECONDS))
    if not topologies:
        raise next(iter(wrong.values()))
    prepared = prepare(
        scaled(latest_topology(list(topologies.values())), counts), dry=dry, progress=progress, mixed=True
    )
    if prepared.base is None:  # the cluster went down in the meantime
        if not dry:
            abort(prepared.everywhere, prepared.examined)
        raise not_running(cluster.name)
    return prepared


def _hosts_before(wanted: ClusterTopology) -> tuple[Host, ...]:
    """Return the hosts that the cluster has so far, as far as this machine knows.

    Raises:
        ClusterError: The spec gives the name of such a host to another machine or state folder.
    """
    noted = registry.read(wanted.cluster)
    before = tuple(noted.hosts.values()) if noted else (THIS_MACHINE,) * journal_path(wanted.cluster).exists()
    now = {host.name: host for host in wanted.hosts}
    for host in before:
        new = now.get(host.name, host)
        if (new.ssh, new.state) != (host.ssh, host.state):
            raise ClusterError(
                f"cluster {wanted.cluster!r} is up on host {host.name}, which is another place in this spec: "
                f"ssh {new.ssh}, state {new.state} (it was ssh {host.ssh}, state {host.state})",
                hint=f"Give the new one another name, or `tfcluster down -c {wanted.cluster}` first.",
                exit_code=ExitCode.USAGE,
            )
    return before


def planned(
    wanted: ClusterTopology, examined: Mapping[str, HostPreflight]
) -> tuple[ObservedState | None, ClusterTopology, tuple[PlannedAction, ...]]:
    """Compute the plan from the preflight results.

    Args:
        wanted: The topology of the spec.
        examined: The preflight result of each host.

    Returns:
        The observed state of the whole cluster (None if it is not running), the desired topology with all ports and
        GPUs carried over from it or newly allocated, and the planned actions.
    """
    parts = {host: each.found for host, each in examined.items() if each.found is not None}
    found = _put_together(list(parts.values()))
    topology = wanted if found is None else onto(wanted, found)
    for host, each in examined.items():
        open_ports = {
            task.name for task in (*topology.tasks, *topology.reserved) if task.host == host and task.port is None
        }
        ports = {name: port for name, port in each.choices.ports.items() if name in open_ports}
        topology = topology.with_choices(ports, each.choices.gpus)
    return found, topology, _operations(topology, found, parts)


def _put_together(parts: Sequence[ObservedState]) -> ObservedState | None:
    """Merge the observed states of all hosts; if a change was not applied everywhere, take its latest topology."""
    if not parts:
        return None
    return ObservedState(
        topology=latest_topology([part.topology for part in parts]),
        tasks=tuple(task for part in parts for task in part.tasks),
        generations={task: number for part in parts for task, number in part.generations.items()},
        runs={run: tasks for part in parts for run, tasks in part.runs.items()},
    )


def _operations(
    topology: ClusterTopology, found: ObservedState | None, parts: Mapping[str, ObservedState]
) -> tuple[PlannedAction, ...]:
    """Plan the actions; for a host that has an older topology than the others, plan them from that topology."""
    if found is None:
        return plan(topology, None)
    older = {host: part.topology for host, part in parts.items() if part.topology != found.topology}
    operations = [each for each in plan(topology, found) if each.task is None or each.task.host not in older]
    for host, base in older.items():
        theirs = plan(topology, replace(found, topology=base))
        operations += [each for each in theirs if each.task is not None and each.task.host == host]
    return tuple(operations)
