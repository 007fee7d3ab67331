"""`run graph`, and where operations are placed: streamed with the run, drawn, and as servers print it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conftest import SCRIPTS, Sandbox

W0, W1, PS = "/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0", "/job:ps/task:0/device:CPU:0"
_GRAPH = ("run", "graph", "--device", "y1=/job:worker/task:0", "--device", "y2=/job:worker/task:1")


def events(lines: list[Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in lines if event["event"] == kind]


def devices(placements: Iterable[dict[str, Any]]) -> dict[str, str]:
    return {event["op"]: event["device"] for event in placements}


def worker(index: int) -> str:
    return f"/job:worker/replica:0/task:{index}/device:CPU:0"


def test_placement_is_streamed_before_the_result_once_each_and_only_of_the_run(demo: Sandbox) -> None:
    output = demo.json_lines(*_GRAPH, "--log-placement")
    assert output[-1]["event"] == "result"
    placements = events(output, "placement")
    assert placements[0].keys() == {"event", "op", "type", "device"}
    assert len({event["op"] for event in placements}) == len(placements)
    found = devices(placements)
    assert (found["y1"], found["y2"]) == (worker(0), worker(1))
    assert found.keys() == {"Const", "Const_1", "Const_2", "x", "y1/step", "y1", "y2/step", "y2", "y"}, "no transfers"
    result = output[-1]["result"]["operations"]
    assert {name: found[name].replace("/replica:0", "") for name in result} == {
        name: told["device"] for name, told in result.items()
    }
    # Moved, as a newcomer does it; and what the run before had placed does not come again.
    moved = demo.json_lines("run", "graph", "--device", "y1=/job:ps/task:0", "--log-placement")
    assert devices(events(moved, "placement"))["y1"] == "/job:ps/replica:0/task:0/device:CPU:0"
    # Without the option nothing is reported.
    assert events(demo.json_lines(*_GRAPH), "placement") == []


def test_people_see_a_line_for_each_and_a_summary_for_each_device(demo: Sandbox) -> None:
    lines = demo(*_GRAPH, "--log-placement").stdout.splitlines()
    assert "/job:worker/task:1/device:CPU:0  y2 (Sub)" in lines
    [heading] = [at for at, line in enumerate(lines) if line.split() == ["DEVICE", "PLACED", "TYPES"]]
    rows = [line.split(maxsplit=2) for line in lines[heading + 1 : lines.index("", heading)]]
    assert sum(int(row[1]) for row in rows) == sum("  " in line and line.endswith(")") for line in lines[:heading])
    assert "Sub" in next(row[2] for row in rows if row[0] == "/job:worker/task:1/device:CPU:0")
    result = lines[lines.index("y = 238") :]
    assert [line.split() for line in result[3:8]] == [
        ["OPERATION", "VALUE", "RAN", "ON"],
        ["x", "2", W0],
        ["y1", "302", W0],
        ["y2", "-64", W1],
        ["y", "238", W1],
    ]
    assert [line.split()[0] for line in result[9:]] == ["DEVICE", W0, W1]


@pytest.mark.slow
def test_every_program_reports_its_placements(demo: Sandbox) -> None:
    for program in (
        ("pi", "--samples", "1e6"),
        ("mean", "--random", "1000"),
        ("linear", "--steps", "300"),
        ("expfit", "--mode", "data-parallel", "--steps", "20"),
        ("expfit", "--mode", "model-parallel", "--steps", "20"),
    ):
        output = demo.json_lines("run", *program, "--log-placement")
        result = output[-1]
        placed = {event["device"].replace("/replica:0", "") for event in events(output, "placement")}
        assert set(result["devices"]) <= placed, program
        names = {event["op"] for event in events(output, "placement")}
        assert [name for name in names if re.search(r"_[SG]\d+$|/_\d+$|-[0-9a-f]{4}/", name)] == [], program
        graphs = events(output, "graph")
        named = {name for event in graphs for name, _, _ in event["operations"]}
        assert len(named & {event["op"] for event in events(output, "placement")}) > 3, program


def test_a_script_reports_what_it_does_by_tfcluster_and_servers_print_the_rest(demo: Sandbox) -> None:
    output = demo.json_lines("run", "--log-placement", SCRIPTS / "six_by_seven.py")
    assert events(output, "placement") == []
    assert any("`tfcluster logs --placement`" in note for note in output[-1]["notes"])
    found = devices(events(demo.json_lines("logs", "--placement"), "placement"))
    assert found["answer"] == worker(1)
    lines = demo("logs", "--placement", "--no-prefix").stdout.splitlines()
    assert lines.count("/job:worker/task:1/device:CPU:0  answer (Identity)") == 1
    assert all(" (" in line for line in lines)
    path = demo.spec("import tfcluster as t\nprint(int(t.map_reduce(lambda shard: shard * 2, shards=4)))", "doubles.py")
    output = demo.json_lines("run", "--log-placement", path)
    placements = events(output, "placement")
    assert {"Mul"} <= {event["type"] for event in placements}
    assert output[-1]["notes"] == []
    identity = output[0]["run"]
    assert events(demo.json_lines("attach", identity), "placement") == placements


@pytest.mark.slow
@pytest.mark.needs("graphviz")
def test_the_placed_graph_is_drawn(demo: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "graph.svg"
    output = demo(*_GRAPH, "--placement-graph", path)
    assert f"the placed graph is in {path}" in output.stderr
    assert " (Sub)" not in output.stdout, "drawn, not listed"
    groups = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}g")
    boxes = {str(group[2].text): group[1].get("fill") for group in groups if group.get("class") == "node"}
    assert {"y1", "y2", "y"} <= boxes.keys()
    assert boxes["y1"] != boxes["y2"]
    refused = demo("run", "graph", "--placement-graph", path, env={"PATH": str(tmp_path)}, code=2).stderr
    assert "requires Graphviz" in refused
    demo("run", "pi", "--samples", "1e6", "--placement-graph", tmp_path / "pi.dot")
    assert (tmp_path / "pi.dot").read_text().count("subgraph") in (1, 2), "a device that is late has nothing to do"
    refused = demo("run", "graph", "--placement-graph", tmp_path / "graph.gif", code=2).stderr
    assert "does not end in .svg, .dot" in refused
    detached = demo("run", "graph", "--placement-graph", path, "--detach", code=2).stderr
    assert "cannot be combined with --detach" in detached


def test_the_default_is_split_over_the_workers(demo: Sandbox) -> None:
    result = demo.json("run", "graph")
    assert result["result"] == {
        "value": 238,
        "name": "y",
        "operations": {
            "x": {"value": 2, "device": W0},
            "y1": {"value": 302, "device": W1},
            "y2": {"value": -64, "device": W0},
            "y": {"value": 238, "device": W1},
        },
    }
    assert set(result["devices"]) == {W0, W1}
    assert all(work["ops"] >= 4 for work in result["devices"].values())
    assert result["notes"] == []


@pytest.mark.slow
def test_an_expression_of_ones_own_with_another_x(demo: Sandbox) -> None:
    options = ("x = 5; (x - 8) * (x + 1)", "--x", "7.5", "--devices", "/job:ps")
    result = demo.json("run", "graph", *options)["result"]
    assert (result["value"], result["operations"]["x"]["device"]) == (-4.25, PS)


def test_a_missing_gpu(demo: Sandbox) -> None:
    asked = "/job:worker/task:1/device:GPU:0"
    error = demo("run", "graph", "--device", f"y2={asked}", "--strict", code=1).stderr
    assert error.startswith(f"error: y2 asks for {asked}, which the cluster does not have\nhint: ")
