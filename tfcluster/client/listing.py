"""All clusters of this account that are up, with the state of each."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster import settings
from tfcluster.client.cluster import recorded_spec
from tfcluster.client.resolve import find_cluster, names_of_clusters
from tfcluster.client.rpc.parallel import map_hosts
from tfcluster.client.status import pending_status, take_snapshot
from tfcluster.core.states import ClusterState, TaskState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.records import record_class

#: The state of a cluster of which no host can report its status.
UNREACHABLE = "unreachable"


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
    error: str | None = None  # why it is not up, or cannot be reached


def list_clusters(timeout: float | None = None) -> list[ClusterSummary]:
    """List the clusters by name; all are asked at once.

    A host that does not answer is waited for `timeout` seconds.
    """
    limit = settings.HOST_TIMEOUT_SECONDS if timeout is None else timeout
    names = names_of_clusters()
    found, errors = map_hosts(names, lambda name: _summarize(name, limit), limit + settings.LIST_SECONDS)
    return [found.get(name) or _failed(name, errors[name]) for name in names]


def exit_code(clusters: Sequence[ClusterSummary]) -> ExitCode:
    """Return 0 if every cluster is running, 5 if one cannot be reached, and else 4."""
    states = {each.state for each in clusters}
    if UNREACHABLE in states:
        return ExitCode.UNREACHABLE
    return ExitCode.DONE if states <= {ClusterState.RUNNING} else ExitCode.UNHEALTHY


def _summarize(name: str, timeout: float) -> ClusterSummary:
    cluster = find_cluster(name)
    status, has_servers = pending_status(cluster), True
    if status is None:
        snapshot = take_snapshot(cluster, timeout)
        status, has_servers = snapshot.status, snapshot.topology.has_servers
    tasks = status.tasks if has_servers else ()
    return ClusterSummary(
        name,
        status.state,
        sum(task.state is TaskState.READY for task in tasks),
        len(tasks),
        tuple(host.host for host in status.hosts),
        status.started,
        recorded_spec(name) or status.spec,
    )


def _failed(name: str, error: ClusterError) -> ClusterSummary:
    is_down = error.exit_code is ExitCode.NOT_RUNNING
    state = ClusterState.STOPPED if is_down else UNREACHABLE
    hosts = tuple(find_cluster(name).hosts)
    return ClusterSummary(name, state, 0, 0, hosts, None, recorded_spec(name) or "", error.message)
