"""The runs of a cluster for the page: those that are active or looked at are followed up to their results."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.leader import locate_run
from tfcluster.client.logs import read_logs
from tfcluster.client.placements import Placement, PlacementFilter
from tfcluster.client.runs import find_record, follow
from tfcluster.core.states import ACTIVE_RUN_STATES, RunState
from tfcluster.dashboard.history import RunHistory
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.runs import AttachRequest

if TYPE_CHECKING:
    from tfcluster.ui.graph_diagram import Node

_SKIP_OUTPUT = 2**53  # parts of output, which are not for the curves; the logs have them


class RunBook:
    """What is known of the runs, kept for the latest ones that were looked at. Thread-safe.

    Args:
        cluster: The cluster.
        changed: Called when something has changed.
    """

    def __init__(self, cluster: Cluster, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._changed = changed
        self._lock = threading.Lock()
        self._histories: dict[str, RunHistory] = {}
        self._followed: set[str] = set()

    def follow(self, run: str) -> RunHistory:
        """Follow a run up to its result, in a thread of its own, unless that is done already; return its history."""
        with self._lock:
            history = self._histories.pop(run, None) or RunHistory(run)
            self._histories[run] = history  # the last one that is dropped
            is_new = run not in self._followed and history.result is None
            if is_new:
                self._followed.add(run)
            for other in list(self._histories)[: -settings.DASHBOARD_RUNS]:
                if other not in self._followed:
                    del self._histories[other]
        if is_new:
            threading.Thread(target=self._read, args=(run, history), daemon=True).start()
        return history

    def versions(self) -> dict[str, int]:
        """Return how often each history has changed, by run."""
        with self._lock:
            return {run: history.version for run, history in self._histories.items()}

    def progress(self) -> dict[str, Any]:
        """Return the latest progress of each run that has not ended."""
        with self._lock:
            known = list(self._histories.values())
        return {each.run: each.progress for each in known if each.progress is not None and each.result is None}

    def _read(self, run: str, history: RunHistory) -> None:
        try:
            read_history(self._cluster, history, self._changed)
        except ClusterError:
            pass  # the page still has the record, and the next change of the run's state tries again
        finally:
            with self._lock:
                self._followed.discard(run)
            self._changed()


def read_history(cluster: Cluster, history: RunHistory, changed: Callable[[], None] = lambda: None) -> None:
    """Read the events of a run up to its result.

    Args:
        cluster: The cluster; it may be down.
        history: Gets the events.
        changed: Called after each of them.

    Raises:
        ClusterError: There is no such run, or its host cannot be reached.
    """
    leader, identity = locate_run(cluster, history.run, start=True)
    request = AttachRequest(identity, events=0, output=_SKIP_OUTPUT, owned=False)
    response = leader.connect_head().stream(request, start=True)
    for event in follow(leader, response, identity, None, events=0, owned=False):
        history.update(event)
        changed()


def placed_graph(cluster: Cluster, history: RunHistory) -> dict[str, Any]:
    """Return the placed graph of a run as a drawing: boxes and edges with their places.

    Args:
        cluster: The cluster; the logs of its tasks have the placements.
        history: The run, with the operations of its graphs.

    Raises:
        ClusterError: The logs cannot be read.
    """
    from tfcluster.ui.graph_diagram import Node  # it imports rich

    record = find_record(cluster, history.run)
    until: float | None = None
    grep: tuple[str, ...] = ()
    if record["program"] != "script":
        grep = (f"^{re.escape(history.run)}/",)  # the name scope of its operations
    elif RunState(record["state"]) not in ACTIVE_RUN_STATES:
        until = latest_end(record)
    placements: list[Placement] = []
    accepted = PlacementFilter(history.run if grep else None)
    for line in read_logs(cluster, since=record["started"], until=until, grep=grep):
        placement = accepted.parse_line(line["line"])
        if placement is not None:
            device = placement.device.replace("/replica:0", "")
            placements.append(Placement(placement.op, placement.type, device))
    nodes = [Node(name, kind, tuple(inputs)) for name, kind, inputs in history.operations]
    return _draw(nodes, placements)


def latest_end(record: dict[str, Any]) -> float:
    """Return the Unix time by which a run had ended: its duration does not count the start of its process."""
    return float(record["started"] + (record["seconds"] or 0.0) + settings.DASHBOARD_START_SECONDS)


def _draw(nodes: Sequence[Node], placements: Sequence[Placement]) -> dict[str, Any]:
    """Return the size of the drawing and of a box, a lane for each device, and boxes and edges with their places."""
    from tfcluster.ui.graph_diagram import BOX, LANE_GAP, MARGIN, build_diagram, place

    diagram = build_diagram(nodes, placements)
    devices = sorted({box.device for box in diagram.boxes})
    places, widths, height = place(diagram, devices)
    lanes, x = [], MARGIN
    for device in devices:
        lanes.append({"device": device, "x": x, "width": widths[device]})
        x += widths[device] + LANE_GAP
    boxes = [
        {"label": box.label, "detail": box.detail, "lane": devices.index(box.device), "x": left, "y": top}
        for box, (left, top) in zip(diagram.boxes, places, strict=True)
    ]
    return {"width": x, "height": height, "box": BOX, "lanes": lanes, "boxes": boxes, "edges": diagram.edges}
