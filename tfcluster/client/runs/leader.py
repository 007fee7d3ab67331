"""Which host leads a run: the head task's or, while that cannot be reached, another one with a task of the run."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import map_hosts, warn
from tfcluster.core.devices import may_be_on
from tfcluster.core.runs import find_run, matching_runs
from tfcluster.core.topology import PS_JOB, ClusterTopology, Task, latest_topology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.runs import RunsRequest


def find_leader(cluster: Cluster, patterns: Sequence[str]) -> Cluster:
    """Return the cluster with the host as head that is to lead a new run; a message says so if it is not the usual one.

    `patterns` are the device strings of `--devices`. An error is raised if neither the head nor another host that has
    such a task can be reached.
    """
    if len(cluster.hosts) == 1:
        return cluster
    try:
        topologies, failure = _read_topologies(cluster)
    except ClusterError as error:
        if error.exit_code is ExitCode.UNREACHABLE:
            raise
        return cluster  # the run itself is refused for the same reason
    if failure is None:
        return cluster
    tasks = latest_topology(topologies.values()).tasks
    candidates = _candidates([task for task in tasks if task.host in topologies], patterns)
    if not candidates:
        raise failure
    leader = candidates[0].host
    warn(f"{failure.message}: host {leader!r} leads the run")
    return cluster.led_by(leader)


def locate_run(cluster: Cluster, run: str, *, start: bool) -> tuple[Cluster, str]:
    """Find the host that has the record of a run. The usual head is asked first, and the others unless it has this id.

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
    if run not in leaders:  # a name, or the beginning of an id, may mean a run that another host leads
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
    return latest_topology(_read_topologies(cluster)[0].values())


def _read_topologies(cluster: Cluster) -> tuple[dict[str, ClusterTopology], ClusterError | None]:
    """Return the topology that the head's host has; if it cannot be reached, those of the others, and its error."""
    from tfcluster.protocol.api.cluster import TopologyRequest  # a run on a single host does not need it

    def read(host: str) -> ClusterTopology:
        return cluster.connect(host).call(TopologyRequest())

    try:
        return {cluster.head: read(cluster.head)}, None
    except ClusterError as error:
        if error.exit_code is not ExitCode.UNREACHABLE:
            raise
        failure = error
    others = [host for host in cluster.hosts if host != cluster.head]
    topologies, _ = map_hosts(others, read, settings.HOST_TIMEOUT_SECONDS)
    if not topologies:
        raise failure
    return topologies, failure


def _candidates(tasks: Sequence[Task], patterns: Sequence[str]) -> Sequence[Task]:
    """Return the tasks on whose devices a run may compute, in the order of the spec."""
    if patterns:
        return [task for task in tasks if any(may_be_on(pattern, task.name) for pattern in patterns)]
    return [task for task in tasks if task.job != PS_JOB] or tasks
