"""Draw the placed graph of a run as SVG, with a column and a color for each device, or as Graphviz DOT.

Operations of one name scope on one device are merged into one box to keep the diagram readable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.core.devices import without_replica
from tfcluster.core.run_events import PlacementEvent
from tfcluster.ui.console import error_console

#: The name of an operation or scope, and a device.
Key = tuple[str, str]
# Light shades of the palette of Okabe and Ito (2008), which color-blind people can distinguish too.
_COLORS = ("#a6d8f5", "#f7d488", "#9ee0c6", "#f5b48a", "#e6b8d4", "#b8c9e8", "#f5ef9e", "#d0d0d0")
BOX = _WIDTH, _HEIGHT = 170, 38
_GAP, _MARGIN, _LANE_GAP = 26, 24, 40
_LABEL = 24  # the number of characters that fit into a box


@dataclass(frozen=True)
class Node:
    """One operation of a graph."""

    name: str
    type: str  # as `MatMul`
    inputs: tuple[str, ...]  # names of the operations that it depends on


@dataclass(frozen=True)
class DiagramNode:
    """A box of the diagram: one or more operations on one device."""

    label: str  # the name of the operation or scope
    detail: str  # the operation's type, or the number of operations
    device: str
    depth: int  # the length of the longest path to the box from a box without inputs


@dataclass(frozen=True)
class GraphDiagram:
    """A diagram of a placed graph."""

    boxes: tuple[DiagramNode, ...]
    edges: tuple[tuple[int, int], ...]  # from the index of a box to that of a box that depends on it


@dataclass(frozen=True)
class Lane:
    """The part of the drawing that has the boxes of a device."""

    device: str
    x: int
    width: int


@dataclass(frozen=True)
class Layout:
    """Where everything in a drawing is, and its size."""

    lanes: list[Lane]  # in the order of the devices' names
    corners: list[tuple[int, int]]  # the upper left one of each box
    width: int
    height: int


def build_diagram(nodes: Iterable[Node], placements: Iterable[PlacementEvent]) -> GraphDiagram:
    """Build the diagram of a placed graph, or of several graphs that have the same names on different devices.

    An operation without a placement is left out, such as an operation that the graph optimizer removed.
    """
    devices: dict[str, list[str]] = {}
    for placement in placements:
        devices.setdefault(placement.op, []).append(without_replica(placement.device))
    nodes_by_name = {node.name: node for node in nodes if node.name in devices}
    keys = _keys({name: devices[name] for name in nodes_by_name})
    members: dict[Key, list[Node]] = {}
    for name, node in nodes_by_name.items():
        for device in devices[name]:
            members.setdefault(keys[name, device], []).append(node)
    order = {key: number for number, key in enumerate(members)}
    edges = {
        (order[keys[source, origin]], order[keys[name, device]])
        for name, node in nodes_by_name.items()
        for device in devices[name]
        for source in node.inputs
        if source in nodes_by_name
        # If there are several graphs, each is on its own devices.
        for origin in ([device] if device in devices[source] else devices[source])
        if keys[source, origin] != keys[name, device]
    }
    depths = _depths(len(order), edges)
    boxes = tuple(
        DiagramNode(
            key[0], group[0].type if len(group) == 1 else f"{len(group)} operations", key[1], depths[order[key]]
        )
        for key, group in members.items()
    )
    return GraphDiagram(boxes, tuple(sorted(edges)))


def _keys(devices: Mapping[str, Sequence[str]]) -> dict[Key, Key]:
    """Choose the box of each operation on each device: itself, or the longest scope with which there are few enough."""
    keys: dict[Key, Key] = {}
    for parts in range(max((name.count("/") + 1 for name in devices), default=1), 0, -1):
        keys = {(op, on): ("/".join(op.split("/")[:parts]), on) for op in devices for on in devices[op]}
        if len(set(keys.values())) <= settings.DIAGRAM_BOXES_MAX:
            break
    return keys


def _depths(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Compute the length of the longest path to each box, ignoring edges that close a cycle.

    A graph has cycles if it contains a loop, or if merging operations into boxes created one.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in sorted(edges):
        targets[source].append(target)
    order = _children_first(targets)
    rank = {box: number for number, box in enumerate(reversed(order))}
    depths = [0] * count
    for box in reversed(order):
        for target in targets[box]:
            if rank[target] > rank[box]:
                depths[target] = max(depths[target], depths[box] + 1)
    return depths


def _children_first(targets: Sequence[Sequence[int]]) -> list[int]:
    """Sort the boxes in post-order: each comes after the boxes that its edges lead to, except in cycles.

    This depth-first search uses no recursion, because a graph can be deeper than Python's recursion limit.
    """
    done: list[int] = []
    visited: set[int] = set()
    for root in range(len(targets)):
        stack = [(root, iter(targets[root]))] if root not in visited else []
        visited.add(root)
        while stack:
            box, rest = stack[-1]
            target = next((each for each in rest if each not in visited), None)
            if target is None:
                done.append(box)
                stack.pop()
            else:
                visited.add(target)
                stack.append((target, iter(targets[target])))
    return done


def render_svg(diagram: GraphDiagram, title: str) -> str:
    """Return the diagram as the text of an SVG file."""
    layout = arrange(diagram)
    width, height = max(layout.width, 400 + 2 * _MARGIN), layout.height
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#666"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN}" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    colors = {}
    for number, lane in enumerate(layout.lanes):
        colors[lane.device] = _color(number)
        lines.append(
            f'<rect x="{lane.x - 8}" y="36" width="{lane.width + 16}" height="{height - 48}" rx="6" '
            f'fill="{_color(number)}" fill-opacity="0.25"/>'
            f'<text x="{lane.x}" y="56" font-weight="bold">{escape(lane.device)}</text>'
        )
    lines += [_edge(layout.corners[source], layout.corners[target]) for source, target in diagram.edges]
    boxes = zip(diagram.boxes, layout.corners, strict=True)
    lines += [_box(box, corner, colors[box.device]) for box, corner in boxes]
    return "\n".join([*lines, "</svg>", ""])


def render_dot(diagram: GraphDiagram, title: str) -> str:
    """Return the diagram in DOT, the language of Graphviz."""
    devices = sorted({box.device for box in diagram.boxes})
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


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def arrange(diagram: GraphDiagram) -> Layout:
    """Arrange the boxes: a lane for each device and a row for each depth, with the boxes of both side by side."""
    cells: dict[tuple[str, int], int] = {}
    columns = []
    for box in diagram.boxes:
        columns.append(cells.get((box.device, box.depth), 0))
        cells[box.device, box.depth] = columns[-1] + 1
    lanes, x = {}, _MARGIN
    for device in sorted({device for device, _ in cells}):
        widest = max(count for (name, _), count in cells.items() if name == device)
        lanes[device] = Lane(device, x, max(widest * (_WIDTH + 12) - 12, 7 * len(device)))
        x += lanes[device].width + _LANE_GAP
    corners = [
        (lanes[box.device].x + column * (_WIDTH + 12), 70 + box.depth * (_HEIGHT + _GAP))
        for box, column in zip(diagram.boxes, columns, strict=True)
    ]
    deepest = max((box.depth for box in diagram.boxes), default=0)
    height = 70 + (deepest + 1) * (_HEIGHT + _GAP) + _MARGIN
    return Layout(list(lanes.values()), corners, x - _LANE_GAP + _MARGIN, height)


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


class PlacedGraph:
    """Collects a run's graphs and placements from its events; the suffix .svg or .dot determines the format."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._title = ""
        self._nodes: list[Node] = []
        self._placements: list[PlacementEvent] = []

    def update(self, event: dict[str, Any]) -> None:
        """Add an event of the run."""
        if event["event"] == "run":
            self._title = event["run"]
        elif event["event"] == "graph":
            self._nodes += [Node(name, kind, tuple(inputs)) for name, kind, inputs in event["operations"]]
        elif event["event"] == "placement":
            self._placements.append(PlacementEvent(event["op"], event["type"], event["device"]))

    def write(self) -> None:
        """Write the collected graph to the file, and print the file's name; raise OSError if it cannot be written."""
        render = render_svg if self._path.suffix.lower() == ".svg" else render_dot
        drawing = render(build_diagram(self._nodes, self._placements), self._title)
        self._path.write_text(drawing, encoding="utf-8")
        error_console().print(f"the placed graph is in {self._path}")
