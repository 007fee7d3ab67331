"""Draw the placed graph of a run, with a box for each device, by Graphviz.

Operations of one name scope on one device are merged to keep the drawing readable.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from tfcluster import settings
from tfcluster.core.devices import without_replica
from tfcluster.core.run_events import PlacementEvent
from tfcluster.errors import ClusterError, usage_error
from tfcluster.ui.console import error_console

#: The name of an operation or scope, and a device.
Key = tuple[str, str]
# Light shades of the palette of Okabe and Ito (2008), which color-blind people can distinguish too.
_COLORS = ("#a6d8f5", "#f7d488", "#9ee0c6", "#f5b48a", "#e6b8d4", "#b8c9e8", "#f5ef9e", "#d0d0d0")


@dataclass(frozen=True)
class Node:
    """One operation of a graph."""

    name: str
    type: str  # as `MatMul`
    inputs: tuple[str, ...]  # names of the operations that it depends on


@dataclass(frozen=True)
class Box:
    """A box of the diagram: one or more operations on one device."""

    label: str  # the name of the operation or scope
    detail: str  # the operation's type, or the number of operations
    device: str

    @property
    def text(self) -> str:
        """The lines in the box."""
        return f"{self.label}\n{self.detail}"


@dataclass(frozen=True)
class GraphDiagram:
    """A diagram of a placed graph."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]  # from the index of a box to that of a box that depends on it


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
    boxes = tuple(
        Box(name, group[0].type if len(group) == 1 else f"{len(group)} operations", device)
        for (name, device), group in members.items()
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


def render_dot(diagram: GraphDiagram, title: str) -> str:
    """Return the diagram in DOT, the language of Graphviz."""
    devices = sorted({box.device for box in diagram.boxes})
    lines = [
        f"digraph {_quote(title)} {{",
        f"  label={_quote(title)}; labelloc=t; fontname=sans;",
        "  node [shape=box, style=filled, fontname=sans];",
    ]
    for number, device in enumerate(devices):
        color = _COLORS[number % len(_COLORS)]
        lines += [
            f"  subgraph cluster_{number} {{",
            f'    label={_quote(device)}; style=filled; fillcolor="{color}40";',
            *(
                f'    n{index} [label={_quote(box.text)}, fillcolor="{color}"];'
                for index, box in enumerate(diagram.boxes)
                if box.device == device
            ),
            "  }",
        ]
    lines += [f"  n{source} -> n{target};" for source, target in diagram.edges]
    return "\n".join([*lines, "}", ""])


def _quote(text: str) -> str:
    """Return a string of DOT, which escapes the characters of TensorFlow's names in the same way as JSON."""
    return json.dumps(text, ensure_ascii=False)


def refuse_without_graphviz(path: Path) -> None:
    """Raise a usage error before a run if Graphviz, which draws an .svg file, is not installed."""
    if path.suffix.lower() == ".svg" and which("dot") is None:
        raise usage_error(
            f"--placement-graph {path} requires Graphviz, whose program `dot` is not installed",
            "Install it, as with `apt install graphviz`; a file that ends with .dot can be written without it.",
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
        """Write the collected graph to the file, and print the file's name.

        Raises OSError if the file cannot be written, and ClusterError if Graphviz fails.
        """
        drawing = render_dot(build_diagram(self._nodes, self._placements), self._title).encode()
        if self._path.suffix.lower() == ".svg":
            drawing = _draw_svg(drawing)
        self._path.write_bytes(drawing)
        error_console().print(f"the placed graph is in {self._path}")


def _draw_svg(dot: bytes) -> bytes:
    """Have Graphviz draw a graph."""
    drawn = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, check=False)
    if drawn.returncode:
        raise ClusterError(f"Graphviz cannot draw the placed graph: {drawn.stderr.decode(errors='replace').strip()}")
    return drawn.stdout
