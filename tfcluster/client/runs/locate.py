"""Which host has a run: that of the head task, or of an earlier one; and the topology that the hosts have."""

from __future__ import annotations

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import map_hosts
from tfcluster.core.runs import find_run, matching_runs
from tfcluster.core.topology import ClusterTopology, latest_topology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.runs import RunsRequest


def locate_run(cluster: Cluster, run: str, *, start: bool) -> tuple[Cluster, str]:
    """Find the host that has the record of a run. The head's host is asked first, and the others unless it has this id.

    `run` is an id, a name, or a unique prefix of an id. With `start`, the cluster may be down, and an agent is started
    to read the records. Return the cluster with the host as head, and the run's id; or the arguments as they are if no
    host has the record.

    Raises:
        ClusterError: Several runs are meant; or the head cannot be reached, and no other host has the run.
    """

    def list_ids(host: str) -> list[str]:
        client = cluster.connect(host)
        if start and not client.transport.has_state():
            return []
        return [each.run for each in client.call(RunsRequest(None), start=start).runs]

    if len(cluster.hosts) == 1:
        return cluster, run
    failure = None
    leaders: dict[str, str] = {}
    try:
        leaders = dict.fromkeys(list_ids(cluster.head), cluster.head)
    except ClusterError as error:
        if error.exit_code is not ExitCode.UNREACHABLE:
            raise
        failure = error
    if run not in leaders:  # a name, or the beginning of an id, may mean a run of an earlier head task
        others = [host for host in cluster.hosts if host != cluster.head]
        replies, _ = map_hosts(others, list_ids, settings.HOST_TIMEOUT_SECONDS)
        leaders = {each: host for host, ids in replies.items() for each in ids} | leaders
    if matching_runs(run, leaders):
        run_id = find_run(run, leaders)
        return cluster.led_by(leaders[run_id]), run_id
    if failure is not None:
        raise ClusterError(
            f"{failure.message}, and no other host has a run {run!r}", hint=failure.hint, exit_code=failure.exit_code
        )
    return cluster, run


def read_topology(cluster: Cluster) -> ClusterTopology:
    """Return the topology of a cluster that is up; if the head's host cannot be reached, from the other hosts."""
    from tfcluster.protocol.api.cluster import TopologyRequest  # a run on a single host does not need it

    def read(host: str) -> ClusterTopology:
        return cluster.connect(host).call(TopologyRequest())

    try:
        return read(cluster.head)
    except ClusterError as error:
        if error.exit_code is not ExitCode.UNREACHABLE:
            raise
        others = [host for host in cluster.hosts if host != cluster.head]
        topologies, _ = map_hosts(others, read, settings.HOST_TIMEOUT_SECONDS)
        if not topologies:
            raise
    return latest_topology(topologies.values())
