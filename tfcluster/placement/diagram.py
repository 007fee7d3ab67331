"""A placed graph, made small enough to look at: operations of one scope on one device become one box."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfcluster.placement.parser import Placement

#: An operation or scope, and a device.
Key = tuple[str, str]

#: More boxes than this nobody can look at.
_MOST_BOXES = 60


@dataclass(frozen=True)
class Node:
    """One operation of a graph.

    Attributes:
        name: Its name.
        type: Its type, as `MatMul`.
        inputs: Names of the operations that it waits for.
    """

    name: str
    type: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class DiagramNode:
    """One or more operations on one device.

    Attributes:
        label: The operation's name, or the scope's.
        detail: The operation's type, or how many operations there are.
        device: Where they are.
        depth: The longest way to it from a box that waits for none, in steps.
    """

    label: str
    detail: str
    device: str
    depth: int


@dataclass(frozen=True)
class GraphDiagram:
    """What is drawn: boxes, and which of them (by index) waits for which."""

    boxes: tuple[DiagramNode, ...]
    edges: tuple[tuple[int, int], ...]


def build_diagram(nodes: Iterable[Node], placements: Iterable[Placement]) -> GraphDiagram:
    """Boxes and arrows of a placed graph.

    Args:
        nodes: The operations of the graph, or of several whose operations bear the same names on other devices.
        placements: Where each was placed; one that was not is left out, as those are that the optimiser took away.
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
        # Of several graphs each is on devices of its own.
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
    """The box of each operation on each device: the operation itself, or as much of its scope as gives few boxes."""
    keys: dict[Key, Key] = {}
    for parts in range(max((name.count("/") + 1 for name in devices), default=1), 0, -1):
        keys = {(name, device): (_scope(name, parts), device) for name, on in devices.items() for device in on}
        if len(set(keys.values())) <= _MOST_BOXES:
            break
    return keys


def _scope(name: str, parts: int) -> str:
    return "/".join(name.split("/")[:parts])


def _depths(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The longest way to each box; an edge that would close a circle (of a loop, or of merged boxes) is passed over."""
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
    """Every box behind those that it leads to, but for circles; without recursion, as graphs may be deep."""
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
