"""Shut clusters down: cancel their runs, stop their tasks host by host, and end their agents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.client.cluster import Cluster, register, unregister
from tfcluster.client.resolve import cluster_of_spec, clusters_of_processes, find_cluster, resolve_cluster
from tfcluster.client.rpc.agent_client import AgentClient, AgentDisconnectedError
from tfcluster.client.rpc.parallel import (
    StreamContext,
    format_host_errors,
    join_hints,
    map_hosts,
    merge_streams,
    unreachable,
    warn,
)
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.status import ClusterSnapshot, NoStatusError, take_snapshot
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.core.status import ClusterStatus, HostUnavailable, RunStatus, aggregate_status
from tfcluster.core.topology import PS_JOB
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.paths import running_clusters
from tfcluster.protocol.api.cluster import DownReply, DownRequest
from tfcluster.protocol.api.runs import AttachRequest, CancelRequest
from tfcluster.transport.errors import not_running


def clusters_to_stop(named: str | None, everything: bool, spec: Path | None = None) -> list[Cluster]:
    """Return the clusters that `down` has to stop: that of a spec; with `everything`, all that are running."""
    if spec is not None:
        return [cluster_of_spec(spec).upgrading()]
    if not everything:
        return [resolve_cluster(named).upgrading()]
    if named:
        raise usage_error("give -c or --all, not both")
    running = sorted({*running_clusters(), *clusters_of_processes()})
    if not running:
        raise ClusterError("no cluster is running", exit_code=ExitCode.NOT_RUNNING)
    return [find_cluster(name).upgrading() for name in running]


class _NothingStoppedError(ClusterError):
    """A provider's error before any task was stopped."""


def take_down(
    cluster: Cluster,
    grace: float,
    timeout: float | None,
    show_status: Callable[[ClusterStatus], None],
    *,
    is_own: bool = False,
    approve: Callable[[Sequence[RunStatus]], None] = lambda runs: None,
) -> None:
    """Stop a cluster; when this returns, none of its processes is running. The hosts of a provider end.

    The runs are cancelled first. Then the hosts without a ps stop, and then those with one, so that workers stop before
    the ps whose variables they use.

    Args:
        grace: Seconds between SIGTERM and SIGKILL.
        is_own: Whether this command has brought the cluster up, as `launch` does.
        approve: Called with the active runs, if there are any, before anything stops; what it raises ends this.

    Raises:
        ClusterError: The cluster is not running; or a host could not be reached, and its tasks may still be running:
            the other hosts are stopped, and the next `down` stops that host.
    """
    if cluster.provider is not None:
        cluster.provider.check_release()  # before anything stops: without a right, nothing is half down
    try:
        _take_down(cluster, grace, timeout, show_status, is_own=is_own, approve=approve)
    except _NothingStoppedError:
        raise
    except ClusterError as error:  # all that still runs on the hosts of a provider ends with them
        is_lost = error.exit_code in (ExitCode.NOT_RUNNING, ExitCode.UNREACHABLE)
        if not is_lost or cluster.provider is None:
            raise
    if cluster.provider is not None:
        register(cluster)  # its hosts have stopped: if this fails, the next `down` releases them
        cluster.provider.release()
        unregister(cluster.name)


def _take_down(
    cluster: Cluster,
    grace: float,
    timeout: float | None,
    show_status: Callable[[ClusterStatus], None],
    *,
    is_own: bool,
    approve: Callable[[Sequence[RunStatus]], None],
) -> None:
    try:
        snapshot = take_snapshot(cluster, timeout)
    except NoStatusError as error:
        _forget_topology(cluster)
        lost_hosts = _stop_without_status(cluster, error.errors, grace)
        _register_remaining(cluster, lost_hosts)
        if lost_hosts:
            raise _incomplete(cluster, lost_hosts, []) from None
        return
    except ClusterError as error:
        if error.exit_code is ExitCode.NOT_RUNNING and cluster.provider is None:
            unregister(cluster.name)
            raise not_running(cluster.name) from None
        raise
    if not is_own and (note := snapshot.topology.describe_launch()):
        warn(note)
    if active := [run for run in snapshot.status.runs if run.state in ACTIVE_RUN_STATES]:
        approve(active)
    _forget_topology(cluster)
    errors = _stop_without_status(cluster, snapshot.errors, grace)
    _cancel_runs(cluster, snapshot)
    errors |= _stop_in_order(cluster, snapshot, grace, show_status)
    _register_remaining(cluster, errors)
    lost_hosts = {host: error for host, error in errors.items() if error.exit_code is ExitCode.UNREACHABLE}
    if len(lost_hosts) < len(errors):
        raise ClusterError(
            "\n".join(format_host_errors(cluster, errors)), hint=join_hints(errors) or "Type `tfcluster down` again."
        )
    if lost_hosts:
        tasks = [f"{task.short} on {task.host}" for task in snapshot.topology.tasks if task.host in lost_hosts]
        raise _incomplete(cluster, lost_hosts, tasks)


def _forget_topology(cluster: Cluster) -> None:
    """Have no host of a provider start the tasks again."""
    if cluster.provider is None:
        return
    try:
        cluster.provider.forget_topology()
    except ClusterError as error:
        raise _NothingStoppedError(
            f"nothing was stopped: {error.message}", hint=error.hint, exit_code=error.exit_code
        ) from None


def _cancel_runs(cluster: Cluster, snapshot: ClusterSnapshot) -> None:
    """Cancel the active runs, and wait for some time until they have ended."""
    runs = {
        host: active
        for host, status in snapshot.statuses.items()
        if (active := [run.run for run in status.runs if run.state in ACTIVE_RUN_STATES])
    }
    if len(cluster.hosts) > 1:  # on a cluster with one host, its agent cancels the runs itself
        map_hosts(runs, lambda host: _cancel(cluster.connect(host), runs[host]), settings.DOWN_RUNS_SECONDS)


def _cancel(client: AgentClient, runs: Collection[str]) -> None:
    """Cancel runs and wait until they have ended."""
    for run in runs:
        client.call(CancelRequest(run))
    for run in runs:
        client.call(AttachRequest(run, events=0, output=0, cancel_on_disconnect=False, only_result=True))


def _stop_in_order(
    cluster: Cluster, snapshot: ClusterSnapshot, grace: float, show_status: Callable[[ClusterStatus], None]
) -> dict[str, ClusterError]:
    """Stop the hosts without a ps, then those with one; return the error of each host that is not stopped, by host."""
    statuses: dict[str, ClusterStatus | HostUnavailable] = {**snapshot.statuses}
    hosts_with_ps = {task.host for task in snapshot.topology.tasks if task.job == PS_JOB}
    errors: dict[str, ClusterError] = {}
    for has_ps in (False, True):
        hosts = [host for host in snapshot.statuses if (host in hosts_with_ps) is has_ps]
        for host, status in stop_hosts(cluster, hosts, grace):
            if isinstance(status, ClusterError):
                errors[host] = status
            else:
                statuses[host] = status
                show_status(aggregate_status(snapshot.topology, statuses))
    return errors


def _stop_without_status(cluster: Cluster, errors: Mapping[str, ClusterError], grace: float) -> dict[str, ClusterError]:
    """Stop the hosts that can be reached but report no status, because their journal cannot be parsed or is missing.

    `errors` has the error of each host that reported no status. Return those of the hosts that are not stopped.
    """
    reachable = [host for host, error in errors.items() if error.exit_code is not ExitCode.UNREACHABLE]
    remaining = {host: error for host, error in errors.items() if host not in reachable}
    for host, status in stop_hosts(cluster, reachable, grace):
        if isinstance(status, ClusterError):
            remaining[host] = status
    return remaining


def stop_hosts(
    cluster: Cluster, hosts: Collection[str], grace: float
) -> Iterator[tuple[str, ClusterStatus | ClusterError]]:
    """Stop everything that a cluster has on some of its hosts, on all of them in parallel.

    Yield each host with its status at each change, or with the error that ended its stream.
    """
    streams = {host: partial(_stop_host, cluster.connect(host), grace) for host in hosts}
    with contextlib.closing(merge_streams(streams)) as statuses:
        for host, status in statuses:
            # A concurrent `down` stopped the host first, which is the desired result.
            if not (isinstance(status, ClusterError) and status.exit_code is ExitCode.NOT_RUNNING):
                yield host, status


def _stop_host(client: AgentClient, grace: float, context: StreamContext) -> Iterator[ClusterStatus]:
    """Stop everything on one host; if its agent dies meanwhile, retry with the next agent.

    An agent is started even if there is no journal: it finds the processes that a lost journal, or an agent that died
    after it had removed the journal, has left.

    This yields the host's status at each change, and ends when the agent has exited.
    """
    # The agent that replaces one that died reads from the journal what remains to be stopped.
    policy = RetryPolicy(settings.WAIT_AGENTS, timeout=settings.DOWN_RECONNECT_SECONDS, retry_initial=False)
    reconnector: Reconnector[ClusterStatus, DownReply] = Reconnector(client, context, policy)
    try:
        for status in reconnector.events(lambda: client.stream(DownRequest(grace), start=True)):
            if status is not None:
                yield status
    except ClusterError as error:
        is_down = isinstance(error, AgentDisconnectedError) or error.exit_code is ExitCode.NOT_RUNNING
        if is_down and reconnector.stream is not None and not client.transport.is_up():
            reconnector.stream.close_and_reap()
            # A concurrent `down` was faster, and the agent has exited.
            raise not_running(client.transport.cluster) from None
        raise
    stream = reconnector.stream
    assert stream is not None, "a response is complete"
    if warning := stream.result().warning:
        context.warn(f"warning: {warning}")
    if not stream.wait_for_agent_end():
        raise ClusterError(
            f"all tasks of {client.transport.cluster!r} are stopped, but its agent is still running",
            hint="`tfcluster status` shows whether it has exited since.",
        )
    client.transport.disconnect()


def _register_remaining(cluster: Cluster, remaining: Collection[str]) -> None:
    """Keep only the hosts that still have to be stopped in the registry."""
    if not remaining:
        unregister(cluster.name)
        return
    hosts = tuple(host for name, host in cluster.hosts.items() if name in remaining)
    head = cluster.head if cluster.head in remaining else hosts[0].name
    register(Cluster(cluster.name, hosts, head))


def _incomplete(cluster: Cluster, errors: Mapping[str, ClusterError], tasks: Sequence[str]) -> ClusterError:
    """Build the error for hosts that could not be reached, which lists the tasks that may still be running there.

    `tasks` are those that are known to have run there, each with its host. The error says that everything else is
    stopped.
    """
    if cluster.is_local:
        return next(iter(errors.values()))
    error = unreachable(cluster, errors)
    what = (
        f"these tasks may still be running there: {', '.join(tasks)}"
        if tasks
        else "its processes there may still be running"
    )
    return ClusterError(
        f"{error.message}\n{what}; the rest of {cluster.name!r} is stopped",
        hint=f"{error.hint} Then `tfcluster down -c {cluster.name}` completes it.",
        exit_code=error.exit_code,
    )
