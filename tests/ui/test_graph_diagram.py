"""A placed graph, from its operations to a picture."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from tfcluster.core.run_events import PlacementEvent
from tfcluster.ui.graph_diagram import Node, build_diagram, render_dot, render_svg

ONE, TWO = "/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0"
NODES = [
    Node("x", "Const", ()),
    Node("y1", "Add", ("x",)),
    Node("y2", "Sub", ("x",)),
    Node("y", "Add", ("y1", "y2")),
    Node("folded", "Const", ()),
]
PLACED = [PlacementEvent(op, "", device) for op, device in (("x", ONE), ("y1", ONE), ("y2", TWO), ("y", TWO))]


def all_on_one(nodes: list[Node]) -> list[PlacementEvent]:
    return [PlacementEvent(node.name, node.type, ONE) for node in nodes]


def test_every_placed_operation_is_a_box_as_deep_as_its_longest_way_or_in_that_of_its_scope() -> None:
    picture = build_diagram(NODES, PLACED)
    assert [(box.label, box.detail, box.device, box.depth) for box in picture.boxes] == [
        ("x", "Const", ONE, 0),
        ("y1", "Add", ONE, 1),
        ("y2", "Sub", TWO, 1),
        ("y", "Add", TWO, 2),
    ]
    assert picture.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    nodes = [Node("x", "Const", ()), Node("y", "Add", ("x",))]
    picture = build_diagram(nodes, [*all_on_one(nodes), *(PlacementEvent(node.name, node.type, TWO) for node in nodes)])
    assert [(box.label, box.device) for box in picture.boxes] == [("x", ONE), ("x", TWO), ("y", ONE), ("y", TWO)]
    assert picture.edges == ((0, 2), (1, 3))
    nodes = [Node(f"layer{layer}/op{number}", "Add", ()) for layer in range(2) for number in range(100)]
    picture = build_diagram(nodes, all_on_one(nodes))
    assert [(box.label, box.detail) for box in picture.boxes] == [
        ("layer0", "100 operations"),
        ("layer1", "100 operations"),
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_edges_lead_downwards_except_in_cycles(arrows: list[tuple[int, int]]) -> None:
    nodes = [Node(str(number), "Op", tuple(str(a) for a, b in arrows if b == number)) for number in range(10)]
    picture = build_diagram(nodes, all_on_one(nodes))
    assert all(0 <= box.depth < 10 for box in picture.boxes)
    if all(a < b for a, b in arrows):
        assert all(picture.boxes[a].depth < picture.boxes[b].depth for a, b in picture.edges)


def test_an_svg_has_a_colour_for_each_device_and_a_box_for_each_operation() -> None:
    root = ElementTree.fromstring(render_svg(build_diagram(NODES, PLACED), 'a <graph> of "two" devices'))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert 'a <graph> of "two" devices' in texts
    assert {ONE, TWO, "x", "y1", "y2", "y"} <= set(texts)
    boxes = [group[1].get("fill") for group in root.iter("{http://www.w3.org/2000/svg}g")]
    assert boxes[0] == boxes[1] != boxes[2] == boxes[3]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 1 + 4  # the arrow's tip, and the arrows


def test_text_for_graphviz_names_the_same_and_without_operations_the_picture_is_empty() -> None:
    text = render_dot(build_diagram(NODES, PLACED), "graph")
    assert text.startswith('digraph "graph" {')
    assert text.count("subgraph") == 2
    assert text.count("->") == 4
    assert f'label="{TWO}"' in text
    assert text.count("{") == text.count("}")
    ElementTree.fromstring(render_svg(build_diagram(NODES, []), "nothing"))
