"""Render the diagram of a placed graph as SVG, with a column and a colour for each device, or as Graphviz DOT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from tfcluster.placement.diagram import DiagramNode, GraphDiagram

# Light shades of the palette of Okabe and Ito (2008), which colour-blind people can distinguish too.
_COLOURS = ("#a6d8f5", "#f7d488", "#9ee0c6", "#f5b48a", "#e6b8d4", "#b8c9e8", "#f5ef9e", "#d0d0d0")
_WIDTH, _HEIGHT, _GAP, _MARGIN, _LANE_GAP = 170, 38, 26, 24, 40
_LABEL = 24  # the number of characters that fit into a box


def svg(picture: GraphDiagram, title: str) -> str:
    """Render a diagram as SVG.

    Args:
        picture: The diagram.
        title: The title above it.

    Returns:
        The text of the SVG file.
    """
    devices = _devices(picture)
    places, lanes, height = _place(picture, devices)
    width = max(sum(lanes.values()) + _LANE_GAP * (len(lanes) - 1), 400) + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#666"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN}" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    left = _MARGIN
    for number, device in enumerate(devices):
        lines.append(
            f'<rect x="{left - 8}" y="36" width="{lanes[device] + 16}" height="{height - 48}" rx="6" '
            f'fill="{_colour(number)}" fill-opacity="0.25"/>'
            f'<text x="{left}" y="56" font-weight="bold">{escape(device)}</text>'
        )
        left += lanes[device] + _LANE_GAP
    lines += [_edge(places[source], places[target]) for source, target in picture.edges]
    lines += [_box(box, places[number], _colour(devices.index(box.device))) for number, box in enumerate(picture.boxes)]
    return "\n".join([*lines, "</svg>", ""])


def dot(picture: GraphDiagram, title: str) -> str:
    """Render a diagram in DOT, the language of Graphviz; the arguments are those of `svg`."""
    devices = _devices(picture)
    lines = [f"digraph {json.dumps(title)} {{", "  node [shape=box, style=filled];"]
    for number, device in enumerate(devices):
        lines.append(f"  subgraph cluster_{number} {{ label={json.dumps(device)};")
        lines += [
            f"    n{index} [label={json.dumps(box.label)}, tooltip={json.dumps(box.detail)}, "
            f'fillcolor="{_colour(number)}"];'
            for index, box in enumerate(picture.boxes)
            if box.device == device
        ]
        lines.append("  }")
    lines += [f"  n{source} -> n{target};" for source, target in picture.edges]
    return "\n".join([*lines, "}", ""])


def _devices(picture: GraphDiagram) -> list[str]:
    return sorted({box.device for box in picture.boxes})


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _place(picture: GraphDiagram, devices: Sequence[str]) -> tuple[list[tuple[int, int]], dict[str, int], int]:
    """Lay out the boxes: a lane for each device and a row for each depth, with the boxes of both side by side.

    Returns:
        The upper left corner of each box, the width of each device's lane, and the height of the whole diagram.
    """
    rows: dict[tuple[str, int], int] = {}
    cells = []
    for box in picture.boxes:
        column = rows.get((box.device, box.depth), 0)
        rows[box.device, box.depth] = column + 1
        cells.append(column)
    widest = {device: max(count for (name, _), count in rows.items() if name == device) for device in devices}
    lanes = {device: max(count * (_WIDTH + 12) - 12, 7 * len(device)) for device, count in widest.items()}
    lefts, left = {}, _MARGIN
    for device in devices:
        lefts[device] = left
        left += lanes[device] + _LANE_GAP
    places = [
        (lefts[box.device] + column * (_WIDTH + 12), 70 + box.depth * (_HEIGHT + _GAP))
        for box, column in zip(picture.boxes, cells, strict=True)
    ]
    deepest = max((box.depth for box in picture.boxes), default=0)
    return places, lanes, 70 + (deepest + 1) * (_HEIGHT + _GAP) + _MARGIN


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _WIDTH // 2, source[1] + _HEIGHT
    x2, y2 = target[0] + _WIDTH // 2, target[1]
    middle = (y1 + y2) // 2
    return (
        f'<path d="M{x1},{y1} C{x1},{middle} {x2},{middle} {x2},{y2}" fill="none" stroke="#666" '
        'stroke-opacity="0.6" marker-end="url(#tip)"/>'
    )


def _box(box: DiagramNode, corner: tuple[int, int], colour: str) -> str:
    x, y = corner
    label = box.label if len(box.label) <= _LABEL else "…" + box.label[1 - _LABEL :]
    return (
        f"<g><title>{escape(box.label)} ({escape(box.detail)}) on {escape(box.device)}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="{colour}" stroke="#555"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + 16}" text-anchor="middle">{escape(label)}</text>'
        f'<text x="{x + _WIDTH // 2}" y="{y + 31}" text-anchor="middle" font-size="10" fill="#444">'
        f"{escape(box.detail)}</text></g>"
    )
