"""List the TensorFlow devices of a cluster's tasks."""

from __future__ import annotations

from typing import Any

from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Method
from tfcluster.transport.base import not_running

# An agent queries all its tasks at the same time, each with a timeout of some seconds.
_ANSWER_SECONDS = 8.0


def list_devices(cluster: Cluster) -> tuple[list[dict[str, Any]], ClusterError | None]:
    """List the devices of all tasks.

    Args:
        cluster: The cluster.

    Returns:
        The devices, each as {task, name, type, memory_bytes, description} and, for a cluster on several hosts, {host};
        and an error that names the tasks and hosts whose devices are missing, None if all answered.

    Raises:
        ClusterError: The cluster is not running, or none of its hosts can be reached.
    """
    told, wrong = split(
        map_hosts(cluster.hosts, lambda host: cluster.connect(host).call(Method.DEVICES), _ANSWER_SECONDS)
    )
    away = {host: error for host, error in wrong.items() if error.exit_code is not ExitCode.NOT_RUNNING}
    if not told:
        raise next(iter([*away.values(), not_running(cluster.name)]))
    devices = [
        device if cluster.is_here else {**device, "host": host}
        for host, answer in told.items()
        for device in answer["devices"]
    ]
    silent = [word for answer in told.values() for word in answer["silent"]]
    if away:
        from tfcluster.client.snapshot import unreachable

        error = unreachable(cluster.name, away)
        return devices, ClusterError("\n".join([error.message, *silent]), hint=error.hint, exit_code=error.exit_code)
    if silent:
        return devices, ClusterError(
            "\n".join(silent),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` what one said last.",
            exit_code=ExitCode.UNHEALTHY,
        )
    return devices, None
