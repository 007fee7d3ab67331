"""The placed graph of a run, for the page to download."""

from __future__ import annotations

from tfcluster.client.live.run_history import RunHistory
from tfcluster.core.run_events import PlacementEvent
from tfcluster.errors import usage_error


def placed_graph(history: RunHistory) -> str:
    """Return the placed graph of a run in DOT, the language of Graphviz.

    Raises ClusterError if the run has reported no placements, or not yet.
    """
    from tfcluster.ui.graph_diagram import Node, build_diagram, render_dot  # it imports rich

    nodes = [Node(name, kind, tuple(inputs)) for name, kind, inputs in list(history.operations)]
    placements = [PlacementEvent(*placement) for placement in list(history.placements)]
    diagram = build_diagram(nodes, placements)
    if not diagram.boxes:
        raise usage_error(f"{history.run} has reported no placements", "`run --log-placement` reports them.")
    return render_dot(diagram, history.run)
