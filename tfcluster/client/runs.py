"""Listing a cluster's runs and cancelling them."""

from __future__ import annotations

from typing import Any

from tfcluster.client.connection import Connection
from tfcluster.places import state_folder
from tfcluster.protocol.messages import Call
from tfcluster.transport.reach import not_running


def list_runs(cluster: str, lines: int | None) -> list[dict[str, Any]]:
    """A cluster's runs, the oldest first, each as {run, program, parameters, state, seconds, started, result, error}.

    Args:
        cluster: Its name; it may be down.
        lines: Only the last so many; None for all.

    Raises:
        ClusterError: The cluster never ran here.
    """
    if not state_folder(cluster).exists():
        raise not_running(cluster)
    # Also for a cluster that is down it is an agent that reads the records of its host.
    answer = Connection(cluster).stream(Call.RUNS, start=True, lines=lines)
    try:
        found: list[dict[str, Any]] = answer.finish()["runs"]
    finally:
        answer.leave()
    return found


def cancel_run(cluster: str, run: str) -> dict[str, Any]:
    """Cancel a run, and give it as {run}; one that has ended already is left as it is.

    Args:
        cluster: Its cluster, which is up.
        run: Its id, or a unique beginning of it.

    Raises:
        ClusterError: There is no such run.
    """
    return Connection(cluster).call(Call.CANCEL, run=run)
