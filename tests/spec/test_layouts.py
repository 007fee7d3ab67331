"""Each file of tests/spec/layouts is a spec; behind it, in comments, is the layout of its cluster.

A layout has what is not as in the simplest cluster, of one task. `pytest --update` writes it anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.core.clusters import topology_of
from tests.goldens import Update
from tests.spec.test_json_schema import errors_of
from tfcluster.core.resolve import resolve_spec
from tfcluster.core.topology import ClusterTopology
from tfcluster.protocol.serialization import decode, to_json
from tfcluster.spec.load import load_spec
from tfcluster.spec.schema import Spec
from tfcluster.spec.variables import SpecEnvironment

LAYOUTS = Path(__file__).with_name("layouts")
HEADING = "\n# The layout:\n"
VARIABLES = {"NAME": "demo", "N": "3", "YES": "false", "TOKEN": "hunter2", "SIZE": "5 MB"}
PLAIN = topology_of("jobs: {a: {tasks: 1}}")


def changed(value: Any, plain: Any, *left_out: str) -> dict[str, Any]:
    """Return the fields of a part of a layout that are not as in the simplest cluster."""
    return {
        each.name: to_json(getattr(value, each.name))
        for each in fields(plain)
        if each.name not in left_out and getattr(value, each.name) != getattr(plain, each.name)
    }


def layout_of(spec: Spec, topology: ClusterTopology) -> dict[str, Any]:
    """Return what a spec stands for."""
    tasks = {
        key: {each.short: changed(each, PLAIN.tasks[0], "job", "index") for each in listed}
        for key, listed in (("tasks", topology.tasks), ("reserved", topology.reserved))
        if listed
    }
    requests = spec.model_dump(include={"slurm", "kubernetes"}, exclude_none=True)
    return {
        "cluster": topology.cluster,
        "head": topology.head().short,
        "network": topology.network,
        **changed(topology, PLAIN, "cluster", "spec", "network", "hosts", "tasks", "reserved"),
        **json.loads(json.dumps(requests)),
        "hosts": {each.name: changed(each, PLAIN.hosts[0], "name") for each in topology.hosts},
        **tasks,
    }


def lines_of(layout: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a layout in YAML."""
    for line in yaml.safe_dump(layout, default_flow_style=None, sort_keys=False, width=10_000).splitlines():
        yield f"# {line}\n"


def test_each_file_is_a_layout_or_the_host_list_of_one() -> None:
    specs = [file for file in LAYOUTS.iterdir() if file.suffix == ".yaml"]
    host_lists = {file.name for file in LAYOUTS.iterdir()} - {file.name for file in specs}
    named = [re.findall(r"^hostfile: (\S+)", file.read_text(), re.MULTILINE) for file in specs]
    assert host_lists == {name for names in named for name in names}


@pytest.mark.parametrize("file", sorted(LAYOUTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_spec_is_laid_out(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LAYOUTS)
    spec = load_spec(Path(file.name), SpecEnvironment(VARIABLES, allocation={}))
    topology = resolve_spec(spec, file.name)
    assert Spec.model_validate(spec.model_dump()) == spec
    assert decode(ClusterTopology, json.loads(json.dumps(to_json(topology)))) == topology
    text, _, expected = file.read_text().partition(HEADING)
    assert errors_of(text) == [], "the JSON schema accepts it"
    found = "".join(lines_of(layout_of(spec, topology)))
    if Update.is_on:
        file.write_text(f"{text}{HEADING}{found}")
    else:
        assert found == expected
