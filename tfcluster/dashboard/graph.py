"""The placed graph of a run, for the page to download."""

from __future__ import annotations

import re
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.run_history import RunHistory
from tfcluster.client.logs import read_logs
from tfcluster.client.runs.placements import PlacementFilter
from tfcluster.client.runs.runs import find_record
from tfcluster.core.states import ACTIVE_RUN_STATES, RunState
from tfcluster.errors import ClusterError


def placed_graph(cluster: Cluster, history: RunHistory) -> str:
    """Return the placed graph of a run in DOT, the language of Graphviz.

    The logs of the cluster's tasks have the placements; the history has the operations. Raises ClusterError if the logs
    cannot be read, or have no placements, or not yet.
    """
    from tfcluster.ui.graph_diagram import Node, build_diagram, render_dot  # it imports rich

    record = find_record(cluster, history.run)
    until: float | None = None
    grep: tuple[str, ...] = ()
    if record["program"] != "script":
        grep = (f"^{re.escape(history.run)}/",)  # the name scope of its operations
    elif RunState(record["state"]) not in ACTIVE_RUN_STATES:
        until = latest_end(record)
    accepted = PlacementFilter(history.run if grep else None)
    lines = read_logs(cluster, since=record["started"], until=until, grep=grep)
    parsed = (accepted.parse_line(line["line"]) for line in lines)
    placements = [placement for placement in parsed if placement is not None]
    nodes = [Node(name, kind, tuple(inputs)) for name, kind, inputs in history.operations]
    diagram = build_diagram(nodes, placements)
    if not diagram.boxes:
        raise ClusterError(
            f"the logs of the tasks have no placements of {history.run}",
            hint="If it has just begun, try again in a moment; of an old run, the logs might be gone.",
        )
    return render_dot(diagram, history.run)


def latest_end(record: dict[str, Any]) -> float:
    """Return the Unix time by which a run had ended: its duration does not count the start of its process."""
    return float(record["started"] + (record["seconds"] or 0.0) + settings.DASHBOARD_START_SECONDS)
