"""The placed graph of a run, as a drawing for the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.run_history import RunHistory
from tfcluster.client.logs import read_logs
from tfcluster.client.runs.placements import PlacementFilter
from tfcluster.client.runs.runs import find_record
from tfcluster.core.run_events import PlacementEvent
from tfcluster.core.states import ACTIVE_RUN_STATES, RunState

if TYPE_CHECKING:
    from tfcluster.ui.graph_diagram import Node


def placed_graph(cluster: Cluster, history: RunHistory) -> dict[str, Any]:
    """Return the placed graph of a run as a drawing: boxes and edges with their places.

    The logs of the cluster's tasks have the placements; the history has the operations. Raises ClusterError if the logs
    cannot be read.
    """
    from tfcluster.ui.graph_diagram import Node  # it imports rich

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
    return _draw(nodes, placements)


def latest_end(record: dict[str, Any]) -> float:
    """Return the Unix time by which a run had ended: its duration does not count the start of its process."""
    return float(record["started"] + (record["seconds"] or 0.0) + settings.DASHBOARD_START_SECONDS)


def _draw(nodes: Sequence[Node], placements: Sequence[PlacementEvent]) -> dict[str, Any]:
    """Return the size of the drawing and of a box, a lane for each device, and boxes and edges with their places."""
    from tfcluster.ui.graph_diagram import BOX, arrange, build_diagram

    diagram = build_diagram(nodes, placements)
    layout = arrange(diagram)
    numbers = {lane.device: number for number, lane in enumerate(layout.lanes)}
    boxes = [
        {"label": box.label, "detail": box.detail, "lane": numbers[box.device], "x": left, "y": top}
        for box, (left, top) in zip(diagram.boxes, layout.corners, strict=True)
    ]
    lanes = [asdict(lane) for lane in layout.lanes]
    size = {"width": layout.width, "height": layout.height, "box": BOX}
    return {**size, "lanes": lanes, "boxes": boxes, "edges": diagram.edges}
