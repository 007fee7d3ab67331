"""List and cancel a cluster's runs."""

from __future__ import annotations

from typing import Any

from tfcluster.client.cluster import Cluster
from tfcluster.protocol.api import Method
from tfcluster.transport.base import not_running


def list_runs(cluster: Cluster, lines: int | None) -> list[dict[str, Any]]:
    """List a cluster's runs.

    Args:
        cluster: The cluster; it may be down.
        lines: The number of latest runs to list; None for all.

    Returns:
        The runs, the oldest first, each as {run, program, parameters, state, seconds, started, result, error}.

    Raises:
        ClusterError: The cluster never ran, or the host that has its runs cannot be reached.
    """
    leader = cluster.leader()
    if not leader.reach.has_state():
        raise not_running(cluster.name)
    # If the cluster is down, an agent is started to read the records of its host.
    answer = leader.stream(Method.RUNS, start=True, lines=lines)
    try:
        found: list[dict[str, Any]] = answer.finish()["runs"]
    finally:
        answer.leave()
    return found


def cancel_run(cluster: Cluster, run: str) -> dict[str, Any]:
    """Cancel a run; a run that has ended already is not changed.

    Args:
        cluster: The run's cluster, which is up.
        run: The run's id, or a unique prefix of it.

    Returns:
        The run's id, as {run}.

    Raises:
        ClusterError: There is no such run.
    """
    return cluster.leader().call(Method.CANCEL, run=run)
