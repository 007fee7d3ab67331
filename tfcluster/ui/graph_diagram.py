"""Build a diagram of a placed graph; operations of one name scope on one device are merged to keep it readable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfcluster import settings
from tfcluster.client.placements import Placement

#: The name of an operation or scope, and a device.
Key = tuple[str, str]


@dataclass(frozen=True)
class Node:
    """One operation of a graph.

    Attributes:
        name: The operation's name.
        type: The operation's type, as `MatMul`.
        inputs: Names of the operations that it depends on.
    """

    name: str
    type: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class DiagramNode:
    """A box of the diagram: one or more operations on one device.

    Attributes:
        label: The name of the operation or scope.
        detail: The operation's type, or the number of operations.
        device: The device of the operations.
        depth: The length of the longest path to the box from a box without inputs.
    """

    label: str
    detail: str
    device: str
    depth: int


@dataclass(frozen=True)
class GraphDiagram:
    """A diagram of a placed graph.

    Attributes:
        boxes: The boxes.
        edges: The edges, each from the index of a box to that of a box that depends on it.
    """

    boxes: tuple[DiagramNode, ...]
    edges: tuple[tuple[int, int], ...]


def build_diagram(nodes: Iterable[Node], placements: Iterable[Placement]) -> GraphDiagram:
    """Build the diagram of a placed graph.

    Args:
        nodes: The operations of the graph, or of several graphs that have the same names on different devices.
        placements: The placements of the operations. An operation without one is left out, such as an operation that
            the graph optimizer removed.
    """
    devices: dict[str, list[str]] = {}
    for placement in placements:
        devices.setdefault(placement.op, []).append(placement.device)
    placed = {node.name: node for node in nodes if node.name in devices}
    keys = _keys({name: devices[name] for name in placed})
    members: dict[Key, list[Node]] = {}
    for name, node in placed.items():
        for device in devices[name]:
            members.setdefault(keys[name, device], []).append(node)
    order = {key: number for number, key in enumerate(members)}
    edges = {
        (order[keys[source, origin]], order[keys[name, device]])
        for name, node in placed.items()
        for device in devices[name]
        for source in node.inputs
        if source in placed
        # If there are several graphs, each is on devices of its own.
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
    """Choose the box of each operation on each device.

    Args:
        devices: The devices of each operation, by its name.

    Returns:
        By operation and device, the key of its box: the operation itself, or the longest prefix of its scope with
        which there are not too many boxes.
    """
    keys: dict[Key, Key] = {}
    for parts in range(max((name.count("/") + 1 for name in devices), default=1), 0, -1):
        keys = {(name, device): (_scope(name, parts), device) for name, on in devices.items() for device in on}
        if len(set(keys.values())) <= settings.DIAGRAM_BOXES_MAX:
            break
    return keys


def _scope(name: str, parts: int) -> str:
    return "/".join(name.split("/")[:parts])


def _depths(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Compute the length of the longest path to each box, ignoring edges that close a cycle.

    A graph has cycles if it contains a loop, or if merging operations into boxes created one.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in sorted(edges):
        targets[source].append(target)
    order = _children_first(targets)
    place = {box: number for number, box in enumerate(reversed(order))}
    depths = [0] * count
    for box in reversed(order):
        for target in targets[box]:
            if place[target] > place[box]:
                depths[target] = max(depths[target], depths[box] + 1)
    return depths


def _children_first(targets: Sequence[Sequence[int]]) -> list[int]:
    """Sort the boxes in post-order: each comes after the boxes that its edges lead to, except in cycles.

    This depth-first search uses no recursion, because a graph can be deeper than Python's recursion limit.
    """
    done: list[int] = []
    seen: set[int] = set()
    for root in range(len(targets)):
        stack = [(root, iter(targets[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            box, rest = stack[-1]
            target = next((each for each in rest if each not in seen), None)
            if target is None:
                done.append(box)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(targets[target])))
    return done
