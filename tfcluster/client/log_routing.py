"""On which hosts of a cluster what somebody names is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.client.snapshot import LOOK_SECONDS, latest_topology
from tfcluster.core.topology import ClusterTopology, matching_tasks
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Method

# A cluster that is down has an agent started to read its logs.
_PROBE_SECONDS = 20.0


def hosts_for_logs(cluster: Cluster, wanted: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Whom to ask for which logs.

    Args:
        cluster: The cluster, of several hosts.
        wanted: Tasks, jobs and runs; all tasks when empty.

    Returns:
        What to ask a host for, by host.

    Raises:
        ClusterError: One names nothing.
    """
    if not wanted:
        return dict.fromkeys(cluster.hosts, ())
    told, _ = split(map_hosts(cluster.hosts, partial(_layout, cluster), LOOK_SECONDS))
    if not told:
        return _known_to(cluster, cluster.hosts, wanted)
    topology = latest_topology(list(told.values()))
    hosts = {task.short: task.host for task in topology.tasks}
    found: dict[str, list[str]] = {}
    for name in wanted:
        try:
            shorts = matching_tasks([name], list(hosts))
        except ClusterError as error:  # a run's, perhaps: they are with the task that leads
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
    return ClusterTopology.from_json(cluster.connect(host).call(Method.TOPOLOGY, settled=False))


def _known_to(
    cluster: Cluster, hosts: Sequence[str] | Mapping[str, object], wanted: Sequence[str]
) -> dict[str, list[str]]:
    """Which of the wanted names a host knows, by host; a host that knows none is left out.

    Raises:
        ClusterError: Nobody knows one of them.
    """
    unknown: dict[str, ClusterError] = {}

    def known(host: str) -> list[str]:
        return [name for name in wanted if _knows(cluster, host, name, unknown)]

    told, wrong = split(map_hosts(hosts, known, _PROBE_SECONDS))
    found = {host: names for host, names in told.items() if names}
    for name in wanted:
        if not any(name in names for names in found.values()):
            raise next(iter([*wrong.values(), *([unknown[name]] if name in unknown else [])]))
    return found


def _knows(cluster: Cluster, host: str, name: str, unknown: dict[str, ClusterError]) -> bool:
    answer = cluster.connect(host).stream(
        Method.LOGS, start=True, tasks=[name], lines=0, since=None, follow=False, after={}
    )
    try:
        answer.finish()
    except ClusterError as error:
        if error.exit_code is not ExitCode.USAGE:
            raise
        unknown[name] = error
        return False
    finally:
        answer.leave()
    return True
