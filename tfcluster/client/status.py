"""The status of a cluster on all its hosts: a snapshot, also with what is used, or as metrics; and its devices."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tfcluster import settings
from tfcluster.client.cluster import Cluster, read_registry, recorded_spec
from tfcluster.client.rpc.agent_client import repeat_once
from tfcluster.client.rpc.parallel import call_hosts, host_timeout, map_hosts, unreachable
from tfcluster.core.devices import Device
from tfcluster.core.states import ClusterState, HostState
from tfcluster.core.status import ClusterStatus, HostStatus, HostUnavailable, aggregate_status
from tfcluster.core.topology import ClusterTopology, latest_topology
from tfcluster.core.usage import HostUsage, with_usage
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST
from tfcluster.protocol.api.cluster import (
    DevicesReply,
    DevicesRequest,
    StatusReply,
    StatusRequest,
    TopologyRequest,
    UsageRequest,
)
from tfcluster.transport.errors import UnrecordedProcessesError, not_running


@dataclass(frozen=True)
class ClusterSnapshot:
    """The state of a cluster at one moment."""

    topology: ClusterTopology  # the latest one that any of the hosts has
    status: ClusterStatus
    errors: dict[str, ClusterError]  # by host, why it could not report its status
    statuses: dict[str, ClusterStatus]  # of each of the other hosts, by host


class NoStatusError(ClusterError):
    """No host of a cluster could report its status.

    The errors are keyed by host.
    """

    def __init__(self, cluster: Cluster, errors: Mapping[str, ClusterError]) -> None:
        error = unreachable(cluster, errors)
        is_down = all(isinstance(each, UnrecordedProcessesError) for each in errors.values())
        code = ExitCode.NOT_RUNNING if is_down else error.exit_code
        super().__init__(error.message, hint=error.hint, exit_code=code)
        self.errors = errors


def take_snapshot(cluster: Cluster, timeout: float | None = None, *, announces_lost: bool = True) -> ClusterSnapshot:
    """Take a snapshot: query all hosts of a cluster in parallel.

    A host that does not answer is waited for `timeout` seconds, with a warning if `announces_lost`. An error is raised
    if the cluster is running on none of its hosts; a NoStatusError says that none of them can report its status.
    """

    cluster.require_hosts()

    first = next(iter(cluster.hosts))

    def query(host: str) -> tuple[StatusReply, ClusterTopology | None]:
        client = cluster.connect(host)
        with contextlib.closing(client.stream(StatusRequest(), timeout=timeout)) as waiting:
            if host != first:
                return waiting.result(), None
            with contextlib.closing(client.stream(TopologyRequest(), timeout=timeout)) as topology:
                return waiting.result(), topology.result()

    def report(host: str) -> tuple[StatusReply, ClusterTopology | None]:
        return repeat_once(lambda: query(host))

    find_lost = (lambda reply: None) if announces_lost else None
    reports, failures = map_hosts(cluster.hosts, report, host_timeout(cluster, timeout), find_lost=find_lost)
    errors = {
        host: error
        for host, error in failures.items()
        if error.exit_code is not ExitCode.NOT_RUNNING or isinstance(error, UnrecordedProcessesError)
    }
    if not reports:
        if not errors:
            raise _nothing_runs(cluster) or failures.get(LOCAL_HOST) or not_running(cluster.name)
        raise _no_status(cluster, errors)
    topology = _latest_topology(cluster, reports, timeout)
    # Some of the topology's hosts may no longer be in the registry, because they are certainly down.
    hosts = dict.fromkeys([*(host.name for host in topology.hosts), *cluster.hosts])
    statuses: dict[str, ClusterStatus | HostUnavailable] = {
        host: reports[host][0].status
        if host in reports
        else HostState.UNREACHABLE
        if host in errors
        else HostState.DOWN
        for host in hosts
    }
    status = with_job(aggregate_status(topology, statuses), cluster)
    return ClusterSnapshot(topology, status, errors, {host: reply.status for host, (reply, _) in reports.items()})


def _latest_topology(
    cluster: Cluster, reports: Mapping[str, tuple[StatusReply, ClusterTopology | None]], timeout: float | None
) -> ClusterTopology:
    """Return the latest of the hosts' topologies, which differ if a change was not applied everywhere.

    Nearly always it is that of the first host; else a few of the hosts with a later one are asked. The topologies of
    all hosts would have as many entries as the square of the number of hosts.
    """
    topologies = [topology for _, topology in reports.values() if topology is not None]
    known = max((topology.generation for topology in topologies), default=-1)
    later = [host for host, (reply, _) in reports.items() if reply.generation > known]
    if later:
        later.sort(key=lambda host: reports[host][0].generation, reverse=True)
        asked = later[: settings.TOPOLOGY_HOSTS]
        replies, errors = call_hosts(cluster, asked, TopologyRequest(), host_timeout(cluster, timeout))
        topologies += replies.values()
    if not topologies:  # they went away after they had sent their status
        raise NoStatusError(cluster, errors)
    return latest_topology(topologies)


def with_job(status: ClusterStatus, cluster: Cluster) -> ClusterStatus:
    """Return a status with the job that the hosts are in: the agent that asks for its end may have no answer yet."""
    if cluster.provider is None or status.job is not None:
        return status
    return replace(status, job=cluster.provider.job_status(time.time()))


def pending_status(cluster: Cluster) -> ClusterStatus | None:
    """Return the status of a cluster that had no hosts yet when `up` last looked; None for others."""
    if cluster.provider is None or cluster.provider.pending() is None:
        return None
    spec = recorded_spec(cluster.name) or ""
    return with_job(ClusterStatus(cluster.name, ClusterState.PENDING, spec, (), (), ()), cluster)


def _no_status(cluster: Cluster, errors: Mapping[str, ClusterError]) -> ClusterError:
    """Return the error for a cluster if no host can report its status."""
    ended = None if cluster.provider is None else cluster.provider.find_end()
    return ended or NoStatusError(cluster, errors)


def _nothing_runs(cluster: Cluster) -> ClusterError | None:
    """Return the error for a cluster that is down, but has left the hosts of a provider, or its entry."""
    if cluster.provider is not None:
        where, end = f" {cluster.provider.place}", cluster.provider.describe_release()
    elif read_registry(cluster.name) is not None:
        where, end = " on any of its hosts", "forgets its hosts"
    else:
        return None
    return ClusterError(
        f"cluster {cluster.name!r} is not running{where}",
        hint=f"`tfcluster up` starts it there; `tfcluster down` {end}.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def take_snapshot_with_usage(
    cluster: Cluster, timeout: float | None = None
) -> tuple[ClusterSnapshot, dict[str, HostUsage]]:
    """Take a snapshot of a cluster, with the load of its hosts and the usage of its tasks, by host.

    See `take_snapshot` for the timeout and for errors. A host that has reported no usage is left out of it.
    """
    snapshot = take_snapshot(cluster, timeout)

    def query(host: str) -> HostUsage:
        return cluster.connect(host).call(UsageRequest(), timeout=timeout)

    limit = settings.HOST_TIMEOUT_SECONDS if timeout is None else timeout
    usages, _ = map_hosts(snapshot.statuses, query, limit)
    return replace(snapshot, status=with_usage(snapshot.status, usages)), usages


def collect_metrics(cluster: Cluster, timeout: float | None = None) -> tuple[str, ClusterError | None]:
    """Collect the metrics of a cluster, on all its hosts.

    Return OpenMetrics text, and the error if the cluster is not running, or none of its hosts can be reached; then the
    text says no more than that.
    """
    from tfcluster.core.metrics import render_metrics

    names = tuple(cluster.hosts)
    try:
        snapshot, usages = take_snapshot_with_usage(cluster, timeout)
    except NoStatusError as error:
        return _without_status(cluster.name, ClusterState.DEGRADED, names, HostState.UNREACHABLE), error
    except ClusterError as error:
        if error.exit_code is not ExitCode.NOT_RUNNING:
            raise
        return _without_status(cluster.name, ClusterState.STOPPED, names, HostState.DOWN), error
    return render_metrics(snapshot.status, usages), None


def _without_status(name: str, state: ClusterState, hosts: tuple[str, ...], host_state: HostState) -> str:
    from tfcluster.core.metrics import render_metrics

    statuses = tuple(HostStatus(host, host_state, None, None) for host in hosts)
    return render_metrics(ClusterStatus(name, state, "", statuses, (), ()), {})


def list_devices(cluster: Cluster, timeout: float | None) -> tuple[list[tuple[str, Device]], ClusterError | None]:
    """List the devices of all tasks.

    With the devices and their hosts comes an error that names the tasks and hosts whose devices are missing; None if
    all answered.
    """

    def query(host: str) -> DevicesReply:
        return cluster.connect(host).call(DevicesRequest(), timeout=timeout)

    replies, errors = map_hosts(cluster.hosts, query, host_timeout(cluster, timeout), find_lost=lambda reply: None)
    errors = {host: error for host, error in errors.items() if error.exit_code is not ExitCode.NOT_RUNNING}
    if not replies:
        raise next(iter([*errors.values(), not_running(cluster.name)]))
    devices = [(host, device) for host, reply in replies.items() for device in reply.devices]
    silent = [problem for reply in replies.values() for problem in reply.silent]
    if errors:
        error = unreachable(cluster, errors)
        return devices, ClusterError("\n".join([error.message, *silent]), hint=error.hint, exit_code=error.exit_code)
    if silent:
        return devices, ClusterError(
            "\n".join(silent),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` the latest output of one.",
            exit_code=ExitCode.UNHEALTHY,
        )
    return devices, None
