"""The placed graph of a run as a picture in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfcluster.placement import graph_render
from tfcluster.placement.diagram import Node, build_diagram
from tfcluster.placement.parser import Placement
from tfcluster.ui.console import error_console

#: How a file is drawn, by its ending.
DRAWN = {".svg": graph_render.svg, ".dot": graph_render.dot}


class GraphPicture:
    """Collects a run's graphs and placements from its events.

    Args:
        path: The file to draw in; its ending, one of `DRAWN`, says how.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._title = ""
        self._nodes: list[Node] = []
        self._placements: list[Placement] = []

    def update(self, event: dict[str, Any]) -> None:
        """Take an event of the run in."""
        if event["event"] == "run":
            self._title = event["run"]
        elif event["event"] == "graph":
            self._nodes += [Node(name, kind, tuple(inputs)) for name, kind, inputs in event["operations"]]
        elif event["event"] == "placement":
            self._placements.append(Placement(event["op"], event["type"], event["device"].replace("/replica:0", "")))

    def write(self) -> None:
        """Draw what has come, and say where.

        Raises:
            OSError: The file cannot be written.
        """
        picture = build_diagram(self._nodes, self._placements)
        self._path.write_text(DRAWN[self._path.suffix.lower()](picture, self._title))
        error_console().print(f"the placed graph is in {self._path}")
