"""Listing a cluster's runs and cancelling them."""

from __future__ import annotations

from typing import Any

from tfcluster.client.cluster import Cluster
from tfcluster.protocol.api import Method
from tfcluster.transport.base import not_running


def list_runs(cluster: Cluster, lines: int | None) -> list[dict[str, Any]]:
    """A cluster's runs, the oldest first, each as {run, program, parameters, state, seconds, started, result, error}.

    Args:
        cluster: The cluster; it may be down.
        lines: Only the last so many; None for all.

    Raises:
        ClusterError: The cluster never ran, or the host that has its runs cannot be reached.
    """
    leader = cluster.leader()
    if not leader.reach.has_state():
        raise not_running(cluster.name)
    # Also for a cluster that is down it is an agent that reads the records of its host.
    answer = leader.stream(Method.RUNS, start=True, lines=lines)
    try:
        found: list[dict[str, Any]] = answer.finish()["runs"]
    finally:
        answer.leave()
    return found


def cancel_run(cluster: Cluster, run: str) -> dict[str, Any]:
    """Cancel a run, and give it as {run}; one that has ended already is left as it is.

    Args:
        cluster: Its cluster, which is up.
        run: Its id, or a unique beginning of it.

    Raises:
        ClusterError: There is no such run.
    """
    return cluster.leader().call(Method.CANCEL, run=run)
