"""Export the placed graph of a run to a file, as SVG or Graphviz DOT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfcluster.placement import graph_render
from tfcluster.placement.diagram import Node, build_diagram
from tfcluster.placement.parser import Placement
from tfcluster.ui.console import error_console

#: The renderer of a file, by its suffix.
DRAWN = {".svg": graph_render.svg, ".dot": graph_render.dot}


class GraphPicture:
    """Collects a run's graphs and placements from its events.

    Args:
        path: The file to write; its suffix, one of `DRAWN`, determines the format.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._title = ""
        self._nodes: list[Node] = []
        self._placements: list[Placement] = []

    def update(self, event: dict[str, Any]) -> None:
        """Add an event of the run."""
        if event["event"] == "run":
            self._title = event["run"]
        elif event["event"] == "graph":
            self._nodes += [Node(name, kind, tuple(inputs)) for name, kind, inputs in event["operations"]]
        elif event["event"] == "placement":
            self._placements.append(Placement(event["op"], event["type"], event["device"].replace("/replica:0", "")))

    def write(self) -> None:
        """Write the graph that was collected to the file, and print the file's name.

        Raises:
            OSError: The file cannot be written.
        """
        picture = build_diagram(self._nodes, self._placements)
        self._path.write_text(DRAWN[self._path.suffix.lower()](picture, self._title))
        error_console().print(f"the placed graph is in {self._path}")
