"""What the server of a task, or the processes of a run, do now."""

from __future__ import annotations

from tfcluster.client.cluster import Cluster
from tfcluster.client.exec import find_exec_target
from tfcluster.client.rpc.parallel import call_hosts, host_timeout, unreachable
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.processes import RunStacksReply, RunStacksRequest, TaskThreadsReply, TaskThreadsRequest


def read_task_threads(cluster: Cluster, name: str) -> TaskThreadsReply:
    """Return what the server of a task (`worker:1` or `/job:worker/task:1`) does, in a cluster that is up."""
    target = find_exec_target(cluster, name)
    return cluster.connect(target.host).call(TaskThreadsRequest(target.task or name))


def read_run_stacks(cluster: Cluster, run: str) -> tuple[list[RunStacksReply], ClusterError | None]:
    """Return the Python stacks of a run's processes, on all hosts that have some.

    `run` is an id, or a unique prefix of one. With the replies comes an error that names the hosts that cannot be
    reached.
    """
    replies, errors = call_hosts(cluster, cluster.hosts, RunStacksRequest(run), host_timeout(cluster))
    failures = [error for error in errors.values() if error.exit_code is not ExitCode.USAGE]
    if not replies:
        raise next(iter([*failures, *errors.values()]))
    away = {host: error for host, error in errors.items() if error.exit_code is ExitCode.UNREACHABLE}
    return list(replies.values()), unreachable(cluster, away) if away else None
