"""All clusters of this account that are up, with the state of each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tfcluster.client.cluster import recorded_spec
from tfcluster.client.resolve import clusters_of_processes, find_cluster
from tfcluster.client.rpc.parallel import map_hosts, unreachable
from tfcluster.client.status import pending_status, take_snapshot
from tfcluster.core.states import ClusterState, HostState, TaskState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import running_clusters
from tfcluster.records import record_class


@record_class(frozen=True)
class ClusterSummary:
    """One cluster, a row of `ls`; its fields are part of the stable JSON output."""

    cluster: str
    state: str  # as in `status`, or `unreachable`
    ready: int  # how many tasks are ready
    tasks: int
    hosts: tuple[str, ...]
    started: float | None  # the Unix time of the `up` that started it, in seconds; None if it is not known
    spec: str
    error: str | None = None  # why it is not up, or which hosts cannot be reached
    hint: str | None = None  # what to do about it


def list_clusters(timeout: float | None = None) -> list[ClusterSummary]:
    """List the clusters by name; all are asked at once.

    A host that does not answer is waited for `timeout` seconds.
    """
    names = sorted({*running_clusters(), *clusters_of_processes()})
    found, errors = map_hosts(names, lambda name: _summarize(name, timeout), None)
    return [found.get(name) or _failed(name, errors[name]) for name in names]


def exit_code(clusters: Sequence[ClusterSummary]) -> ExitCode:
    """Return 0 if every cluster is running, 5 if a host cannot be reached, and else 4."""
    if any(each.error is not None and each.state != ClusterState.STOPPED for each in clusters):
        return ExitCode.UNREACHABLE
    is_fine = all(each.state == ClusterState.RUNNING for each in clusters)
    return ExitCode.DONE if is_fine else ExitCode.UNHEALTHY


def _summarize(name: str, timeout: float | None) -> ClusterSummary:
    cluster = find_cluster(name)
    status, has_servers, error = pending_status(cluster), True, None
    if status is None:
        snapshot = take_snapshot(cluster, timeout, announces_lost=False)
        status, has_servers = snapshot.status, snapshot.topology.has_servers
        error = unreachable(cluster, snapshot.errors) if snapshot.errors else None
    tasks = status.tasks if has_servers else ()
    message, hint = (None, None) if error is None else (error.message, error.hint or None)
    return ClusterSummary(
        name,
        status.state,
        sum(task.state is TaskState.READY for task in tasks),
        len(tasks),
        tuple(host.host for host in status.hosts),
        status.started,
        recorded_spec(name) or status.spec,
        message,
        hint,
    )


def _failed(name: str, error: ClusterError) -> ClusterSummary:
    is_down = error.exit_code is ExitCode.NOT_RUNNING
    state = ClusterState.STOPPED if is_down else HostState.UNREACHABLE
    hosts: tuple[str, ...] = ()
    with contextlib.suppress(ClusterError):  # its entry in the registry cannot be read
        hosts = tuple(find_cluster(name).hosts)
    return ClusterSummary(name, state, 0, 0, hosts, None, recorded_spec(name) or "", error.message, error.hint or None)
