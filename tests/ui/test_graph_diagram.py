"""A placed graph, from its operations to a picture."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tfcluster.core.run_events import PlacementEvent
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.ui.graph_diagram import Node, PlacedGraph, build_diagram, refuse_without_graphviz, render_dot

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


def test_every_placed_operation_is_a_box_or_in_that_of_its_scope() -> None:
    picture = build_diagram(NODES, PLACED)
    assert [(box.label, box.detail, box.device) for box in picture.boxes] == [
        ("x", "Const", ONE),
        ("y1", "Add", ONE),
        ("y2", "Sub", TWO),
        ("y", "Add", TWO),
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


def test_text_for_graphviz_has_a_cluster_for_each_device() -> None:
    text = render_dot(build_diagram(NODES, PLACED), "graph")
    assert text.startswith('digraph "graph" {')
    assert text.count("subgraph") == 2
    assert text.count("->") == 4
    assert f'label="{TWO}"' in text
    assert text.count("{") == text.count("}")


EVENTS: list[dict[str, Any]] = [
    {"event": "run", "run": "mine-ä"},
    {"event": "graph", "operations": [[node.name, node.type, list(node.inputs)] for node in NODES]},
    *({"event": "placement", "op": each.op, "type": "", "device": each.device} for each in PLACED),
]


def draw(path: Path) -> None:
    graph = PlacedGraph(path)
    for event in EVENTS:
        graph.update(event)
    graph.write()


@pytest.mark.needs("graphviz")
def test_graphviz_draws_what_the_text_says(tmp_path: Path) -> None:
    draw(tmp_path / "graph.svg")
    groups = list(ElementTree.parse(tmp_path / "graph.svg").iter("{http://www.w3.org/2000/svg}g"))
    texts = {str(each.get("id")): [str(text.text) for text in each if text.tag.endswith("text")] for each in groups}
    colors = {each.get("id"): each[1].get("fill") for each in groups if each.get("class") == "node"}
    names = {words[0]: name for name, words in texts.items() if name in colors}
    assert {name: texts[node][1] for name, node in names.items()} == {
        "x": "Const",
        "y1": "Add",
        "y2": "Sub",
        "y": "Add",
    }
    assert colors[names["x"]] == colors[names["y1"]] != colors[names["y2"]] == colors[names["y"]]
    assert {ONE, TWO} <= {word for words in texts.values() for word in words}
    assert sum(each.get("class") == "edge" for each in groups) == 4
    assert texts["graph0"] == ["mine-ä"]
    draw(tmp_path / "graph.dot")
    parsed = subprocess.run(["dot", "-Tjson0", tmp_path / "graph.dot"], capture_output=True, check=True).stdout
    assert len(json.loads(parsed)["edges"]) == 4


def test_without_graphviz_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse_without_graphviz(tmp_path / "graph.dot")
    with pytest.raises(ClusterError, match="requires Graphviz, whose program `dot` is not installed") as caught:
        refuse_without_graphviz(tmp_path / "graph.svg")
    assert caught.value.exit_code is ExitCode.USAGE
    assert "apt install graphviz" in caught.value.hint
    draw(tmp_path / "graph.dot")


def test_what_graphviz_says_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\ncat >/dev/null\necho 'Format: \"svg\" not recognized' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ClusterError, match=r'^Graphviz cannot draw the placed graph: Format: "svg" not recognized$'):
        draw(tmp_path / "graph.svg")
    assert not (tmp_path / "graph.svg").exists()
