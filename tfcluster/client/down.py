"""Shut clusters down: cancel their runs, stop their tasks host by host, and end their agents."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from tfcluster import settings
from tfcluster.client import registry
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import StreamContext, map_hosts, merge_streams
from tfcluster.client.resolve import cluster_of, resolve_cluster
from tfcluster.client.rpc import AgentClient, AgentDisconnectedError
from tfcluster.core.status import ClusterStatus
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST, running_clusters
from tfcluster.protocol.api.runs import AttachRequest, CancelRequest
from tfcluster.protocol.api.tasks import DownRequest
from tfcluster.transport.base import not_running


def clusters_to_stop(named: str | None, everything: bool) -> list[Cluster]:
    """Return the clusters that `down` has to stop.

    Args:
        named: The name that the user gave, if any.
        everything: Stop all clusters that are running.

    Raises:
        ClusterError: There is none, or the choice is ambiguous.
    """
    if not everything:
        return [resolve_cluster(named)]
    if named:
        raise ClusterError("give -c or --all, not both", exit_code=ExitCode.USAGE)
    running = running_clusters()
    if not running:
        raise ClusterError("no cluster is running", exit_code=ExitCode.NOT_RUNNING)
    return [cluster_of(name) for name in running]


def take_down(cluster: Cluster, grace: float) -> Iterator[ClusterStatus]:
    """Stop a cluster; when the iterator ends, none of its processes is running.

    Args:
        cluster: The cluster.
        grace: Seconds between SIGTERM and SIGKILL.

    Yields:
        The cluster's status at each change.

    Raises:
        ClusterError: The cluster is not running; or a host could not be reached, and its tasks may still be running:
            the other hosts are stopped, and the next `down` stops that host.
    """
    if cluster.is_here:
        yield from _stop_host(cluster.leader(), grace, StreamContext(cluster.head))
    else:
        yield from _take_down_everywhere(cluster, grace)


def _take_down_everywhere(cluster: Cluster, grace: float) -> Iterator[ClusterStatus]:
    """Cancel the runs, then stop the hosts without a ps, then those with one.

    Workers stop before the ps whose variables they use.
    """
    from tfcluster.client.snapshot import NoStatusError, look, unreachable
    from tfcluster.core.aggregate_status import HostUnavailable, whole
    from tfcluster.core.states import ACTIVE_RUN_STATES
    from tfcluster.core.topology import PS_JOB

    try:
        found = look(cluster)
    except NoStatusError as error:
        away = _stop_refusing(cluster, error.away, grace)
        _note(cluster, away)
        if away:
            raise _left_behind(cluster, unreachable(cluster.name, away), []) from None
        return
    away = _stop_refusing(cluster, found.away, grace)
    told: dict[str, ClusterStatus | HostUnavailable] = {**found.told}
    runs = [run.run for run in found.status.runs if run.state in ACTIVE_RUN_STATES]
    if cluster.head in told and runs:
        map_hosts([cluster.head], lambda host: _cancel(cluster.connect(host), runs), settings.DOWN_RUNS_SECONDS)
    with_ps = {task.host for task in found.topology.tasks if task.job == PS_JOB}
    phases = [[host for host in told if host not in with_ps], [host for host in told if host in with_ps]]
    wrong: dict[str, ClusterError] = {}
    for hosts in phases:
        for host, status in stop_on(cluster, hosts, grace):
            if isinstance(status, ClusterError):
                wrong[host] = status
            else:
                told[host] = status
                yield whole(found.topology, told)
    away |= {host: error for host, error in wrong.items() if error.exit_code is ExitCode.UNREACHABLE}
    _note(cluster, {*away, *wrong})
    failed = {host: error for host, error in wrong.items() if host not in away}
    if failed:
        from tfcluster.client.snapshot import lines_of

        raise ClusterError("\n".join(lines_of({**failed, **away})), hint="Type `tfcluster down` again.")
    if away:
        tasks = [f"{task.short} on {task.host}" for task in found.topology.tasks if task.host in away]
        raise _left_behind(cluster, unreachable(cluster.name, away), tasks)


def _stop_refusing(cluster: Cluster, away: Mapping[str, ClusterError], grace: float) -> dict[str, ClusterError]:
    """Stop the hosts that can be reached but report no status, because their agent cannot parse its journal.

    Args:
        cluster: The cluster.
        away: The error of each host that reported no status, by host.
        grace: Seconds between SIGTERM and SIGKILL.

    Returns:
        The error of each host that is not stopped, by host.
    """
    refusing = [host for host, error in away.items() if error.exit_code is not ExitCode.UNREACHABLE]
    left = {host: error for host, error in away.items() if host not in refusing}
    for host, status in stop_on(cluster, refusing, grace):
        if isinstance(status, ClusterError):
            left[host] = status
    return left


def stop_on(
    cluster: Cluster, hosts: Collection[str], grace: float
) -> Iterator[tuple[str, ClusterStatus | ClusterError]]:
    """Stop everything that a cluster has on some of its hosts, on all of them in parallel.

    Args:
        cluster: The cluster.
        hosts: The hosts.
        grace: Seconds between SIGTERM and SIGKILL.

    Yields:
        Each host with its status at each change, or with the error that ended its stream.
    """
    streams = {host: partial(_stop_host, cluster.connect(host), grace) for host in hosts}
    if not streams:
        return
    with contextlib.closing(merge_streams(streams)) as statuses:
        for host, status in statuses:
            # A concurrent `down` stopped the host first, which is the desired result.
            if not (isinstance(status, ClusterError) and status.exit_code is ExitCode.NOT_RUNNING):
                yield host, status


def _stop_host(connection: AgentClient, grace: float, strand: StreamContext) -> Iterator[ClusterStatus]:
    """Stop everything on one host; if its agent dies meanwhile, retry with the next agent.

    Yields:
        The host's status at each change; the iterator ends when the agent has exited.
    """
    for left in reversed(range(settings.DOWN_AGENTS)):
        response = connection.stream(DownRequest(grace))
        try:
            yield from strand.events(response)
            if warning := response.result().warning:
                strand.tell(f"warning: {warning}")
            break
        except ClusterError as error:
            if not connection.transport.is_up():
                response.close_and_reap()
                # A concurrent `down` was faster, and the agent has exited.
                raise not_running(connection.transport.cluster) from None
            # The agent that replaces one that died reads from the journal what remains to be stopped.
            if not (isinstance(error, AgentDisconnectedError) and left):
                raise
    if not response.wait_for_agent_end():
        raise ClusterError(
            f"all tasks of {connection.transport.cluster!r} are stopped, but its agent has not ended",
            hint="`tfcluster status` tells whether it has since.",
        )
    connection.transport.disconnect()


def _cancel(connection: AgentClient, runs: Collection[str]) -> None:
    """Cancel runs and wait until they have ended."""
    for run in runs:
        connection.call(CancelRequest(run))
    for run in runs:
        connection.call(AttachRequest(run, events=0, output=0, owned=False))


def _note(cluster: Cluster, left: Collection[str]) -> None:
    """Keep only the hosts that still have to be stopped in the registry; this machine needs no entry."""
    if not {*left} - {LOCAL_HOST}:
        registry.remove(cluster.name)
        return
    hosts = tuple(host for name, host in cluster.hosts.items() if name in left)
    registry.write(Cluster(cluster.name, hosts, cluster.head if cluster.head in left else hosts[0].name))


def _left_behind(cluster: Cluster, error: ClusterError, tasks: Sequence[str]) -> ClusterError:
    """Build the error for hosts that could not be reached, which lists the tasks that may still be running there.

    Args:
        cluster: The cluster.
        error: The reason why the hosts could not be reached.
        tasks: The tasks that are known to have run there, each with its host.

    Returns:
        The error to raise; it says that everything else is stopped.
    """
    what = f"still running there, perhaps: {', '.join(tasks)}" if tasks else "what it had there may still run"
    return ClusterError(
        f"{error.message}\n{what}; all else of {cluster.name!r} is stopped",
        hint=f"{error.hint} Then `tfcluster down -c {cluster.name}` finishes the job.",
        exit_code=error.exit_code,
    )
