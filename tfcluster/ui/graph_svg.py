"""Draw the placed graph of a run as SVG, with a column and a color for each device, or as Graphviz DOT.

The graph is collected from the run's events and written to a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from tfcluster.client.placements import Placement
from tfcluster.ui.console import error_console
from tfcluster.ui.graph_diagram import DiagramNode, GraphDiagram, Node, build_diagram

# Light shades of the palette of Okabe and Ito (2008), which color-blind people can distinguish too.
_COLORS = ("#a6d8f5", "#f7d488", "#9ee0c6", "#f5b48a", "#e6b8d4", "#b8c9e8", "#f5ef9e", "#d0d0d0")
_WIDTH, _HEIGHT, _GAP, _MARGIN, _LANE_GAP = 170, 38, 26, 24, 40
_LABEL = 24  # the number of characters that fit into a box


def svg(diagram: GraphDiagram, title: str) -> str:
    """Render a diagram as SVG.

    Args:
        diagram: The diagram.
        title: The title above it.

    Returns:
        The text of the SVG file.
    """
    devices = _devices(diagram)
    places, lanes, height = _place(diagram, devices)
    width = max(sum(lanes.values()) + _LANE_GAP * (len(lanes) - 1), 400) + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#666"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN}" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    x = _MARGIN
    for number, device in enumerate(devices):
        lines.append(
            f'<rect x="{x - 8}" y="36" width="{lanes[device] + 16}" height="{height - 48}" rx="6" '
            f'fill="{_color(number)}" fill-opacity="0.25"/>'
            f'<text x="{x}" y="56" font-weight="bold">{escape(device)}</text>'
        )
        x += lanes[device] + _LANE_GAP
    lines += [_edge(places[source], places[target]) for source, target in diagram.edges]
    lines += [_box(box, places[number], _color(devices.index(box.device))) for number, box in enumerate(diagram.boxes)]
    return "\n".join([*lines, "</svg>", ""])


def dot(diagram: GraphDiagram, title: str) -> str:
    """Render a diagram in DOT, the language of Graphviz; the arguments are those of `svg`."""
    devices = _devices(diagram)
    lines = [f"digraph {json.dumps(title)} {{", "  node [shape=box, style=filled];"]
    for number, device in enumerate(devices):
        lines.append(f"  subgraph cluster_{number} {{ label={json.dumps(device)};")
        lines += [
            f"    n{index} [label={json.dumps(box.label)}, tooltip={json.dumps(box.detail)}, "
            f'fillcolor="{_color(number)}"];'
            for index, box in enumerate(diagram.boxes)
            if box.device == device
        ]
        lines.append("  }")
    lines += [f"  n{source} -> n{target};" for source, target in diagram.edges]
    return "\n".join([*lines, "}", ""])


def _devices(diagram: GraphDiagram) -> list[str]:
    return sorted({box.device for box in diagram.boxes})


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _place(diagram: GraphDiagram, devices: Sequence[str]) -> tuple[list[tuple[int, int]], dict[str, int], int]:
    """Lay out the boxes: a lane for each device and a row for each depth, with the boxes of both side by side.

    Returns:
        The upper left corner of each box, the width of each device's lane, and the height of the whole diagram.
    """
    rows: dict[tuple[str, int], int] = {}
    cells = []
    for box in diagram.boxes:
        column = rows.get((box.device, box.depth), 0)
        rows[box.device, box.depth] = column + 1
        cells.append(column)
    widest = {device: max(count for (name, _), count in rows.items() if name == device) for device in devices}
    lanes = {device: max(count * (_WIDTH + 12) - 12, 7 * len(device)) for device, count in widest.items()}
    starts, x = {}, _MARGIN
    for device in devices:
        starts[device] = x
        x += lanes[device] + _LANE_GAP
    places = [
        (starts[box.device] + column * (_WIDTH + 12), 70 + box.depth * (_HEIGHT + _GAP))
        for box, column in zip(diagram.boxes, cells, strict=True)
    ]
    deepest = max((box.depth for box in diagram.boxes), default=0)
    return places, lanes, 70 + (deepest + 1) * (_HEIGHT + _GAP) + _MARGIN


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _WIDTH // 2, source[1] + _HEIGHT
    x2, y2 = target[0] + _WIDTH // 2, target[1]
    middle = (y1 + y2) // 2
    return (
        f'<path d="M{x1},{y1} C{x1},{middle} {x2},{middle} {x2},{y2}" fill="none" stroke="#666" '
        'stroke-opacity="0.6" marker-end="url(#tip)"/>'
    )


def _box(box: DiagramNode, corner: tuple[int, int], color: str) -> str:
    x, y = corner
    label = box.label if len(box.label) <= _LABEL else "…" + box.label[1 - _LABEL :]
    return (
        f"<g><title>{escape(box.label)} ({escape(box.detail)}) on {escape(box.device)}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="{color}" stroke="#555"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + 16}" text-anchor="middle">{escape(label)}</text>'
        f'<text x="{x + _WIDTH // 2}" y="{y + 31}" text-anchor="middle" font-size="10" fill="#444">'
        f"{escape(box.detail)}</text></g>"
    )


# The renderer of a file, by its suffix.
_RENDERERS = {".svg": svg, ".dot": dot}


class PlacedGraph:
    """Collects a run's graphs and placements from its events.

    Args:
        path: The file to write; its suffix, .svg or .dot, determines the format.
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
        diagram = build_diagram(self._nodes, self._placements)
        self._path.write_text(_RENDERERS[self._path.suffix.lower()](diagram, self._title))
        error_console().print(f"the placed graph is in {self._path}")
