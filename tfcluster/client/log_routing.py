"""Resolve the names of tasks, jobs and runs to the hosts that hold their logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.client.snapshot import latest_topology
from tfcluster.core.topology import ClusterTopology, matching_tasks
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.api.logs import LogsRequest


def hosts_for_logs(cluster: Cluster, wanted: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Determine which logs to request from which host.

    Args:
        cluster: The cluster, on several hosts.
        wanted: Tasks, jobs and runs; all tasks if empty.

    Returns:
        The names to request from each host, by host.

    Raises:
        ClusterError: A name matches no task, job or run.
    """
    if not wanted:
        return dict.fromkeys(cluster.hosts, ())
    told, _ = split(map_hosts(cluster.hosts, partial(_layout, cluster), settings.STATUS_TIMEOUT_SECONDS))
    if not told:
        return _known_to(cluster, cluster.hosts, wanted)
    topology = latest_topology(list(told.values()))
    hosts = {task.short: task.host for task in topology.tasks}
    found: dict[str, list[str]] = {}
    for name in wanted:
        try:
            shorts = matching_tasks([name], list(hosts))
        except ClusterError as error:  # it may be the name of a run, whose logs are on the head's host
            try:
                _known_to(cluster, [cluster.head], [name])
            except ClusterError as at_head:
                raise (error if at_head.exit_code is ExitCode.USAGE else at_head) from None
            found.setdefault(cluster.head, []).append(name)
            continue
        for short in shorts:
            found.setdefault(hosts[short], []).append(short)
    return found


def _layout(cluster: Cluster, host: str) -> ClusterTopology:
    return cluster.connect(host).call(TopologyRequest(settled=False))


def _known_to(
    cluster: Cluster, hosts: Sequence[str] | Mapping[str, object], wanted: Sequence[str]
) -> dict[str, list[str]]:
    """Ask hosts which of the names they have logs for.

    Args:
        cluster: The cluster.
        hosts: The hosts to ask.
        wanted: The names.

    Returns:
        The names that each host knows, by host; a host that knows none is left out.

    Raises:
        ClusterError: No host knows one of the names.
    """
    unknown: dict[str, ClusterError] = {}

    def known(host: str) -> list[str]:
        return [name for name in wanted if _knows(cluster, host, name, unknown)]

    told, wrong = split(map_hosts(hosts, known, settings.LOG_RESOLVE_TIMEOUT_SECONDS))
    found = {host: names for host, names in told.items() if names}
    for name in wanted:
        if not any(name in names for names in found.values()):
            raise next(iter([*wrong.values(), *([unknown[name]] if name in unknown else [])]))
    return found


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
