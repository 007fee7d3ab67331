"""Resolve the names of tasks, jobs and runs to the hosts that hold their logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, partition
from tfcluster.client.snapshot import latest_topology
from tfcluster.core.topology import ClusterTopology, matching_tasks
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.api.logs import LogsRequest


def hosts_for_logs(cluster: Cluster, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Determine which logs to request from which host.

    Args:
        cluster: The cluster, on several hosts.
        names: Tasks, jobs and runs; all tasks if empty.

    Returns:
        The names to request from each host, by host.

    Raises:
        ClusterError: A name matches no task, job or run.
    """
    if not names:
        return dict.fromkeys(cluster.hosts, ())
    replies, _ = partition(map_hosts(cluster.hosts, partial(_topology, cluster), settings.STATUS_TIMEOUT_SECONDS))
    if not replies:
        return _names_known_to(cluster, cluster.hosts, names)
    topology = latest_topology(list(replies.values()))
    hosts = {task.short: task.host for task in topology.tasks}
    routes: dict[str, list[str]] = {}
    for name in names:
        try:
            short_names = matching_tasks([name], list(hosts))
        except ClusterError as error:  # it may be the name of a run, whose logs are on the head's host
            try:
                _names_known_to(cluster, [cluster.head], [name])
            except ClusterError as head_error:
                raise (error if head_error.exit_code is ExitCode.USAGE else head_error) from None
            routes.setdefault(cluster.head, []).append(name)
            continue
        for short in short_names:
            routes.setdefault(hosts[short], []).append(short)
    return routes


def _topology(cluster: Cluster, host: str) -> ClusterTopology:
    return cluster.connect(host).call(TopologyRequest(settled=False))


def _names_known_to(
    cluster: Cluster, hosts: Sequence[str] | Mapping[str, object], names: Sequence[str]
) -> dict[str, list[str]]:
    """Ask hosts which of the names they have logs for.

    Args:
        cluster: The cluster.
        hosts: The hosts to ask.
        names: The names.

    Returns:
        The names that each host knows, by host; a host that knows none is left out.

    Raises:
        ClusterError: No host knows one of the names.
    """
    unknown: dict[str, ClusterError] = {}

    def known(host: str) -> list[str]:
        return [name for name in names if _knows(cluster, host, name, unknown)]

    replies, errors = partition(map_hosts(hosts, known, settings.LOG_RESOLVE_TIMEOUT_SECONDS))
    routes = {host: names for host, names in replies.items() if names}
    for name in names:
        if not any(name in names for names in routes.values()):
            raise next(iter([*errors.values(), *([unknown[name]] if name in unknown else [])]))
    return routes


def _knows(cluster: Cluster, host: str, name: str, unknown: dict[str, ClusterError]) -> bool:
    request = LogsRequest((name,), lines=0, since=None, follow=False, after={})
    response = cluster.connect(host).stream(request, start=True)
    try:
        response.result()
    except ClusterError as error:
        if error.exit_code is not ExitCode.USAGE:
            raise
        unknown[name] = error
        return False
    finally:
        response.close_and_reap()
    return True
