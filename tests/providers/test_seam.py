"""Nothing outside of `providers` depends on which provider a cluster has; and what 0.2.0 has stored is read."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tfcluster
from tests.core.clusters import topology_of
from tfcluster.cli.main import _OF_PROVIDERS
from tfcluster.client.cluster import read_registry
from tfcluster.core.hosts import Provided
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.paths import cluster_registry_path
from tfcluster.protocol.serialization import FORMAT, from_stored, to_json
from tfcluster.providers import COMMANDS, load_host_side
from tfcluster.providers.earlier import from_earlier
from tfcluster.providers.requests import REQUESTS

ROOT = Path(tfcluster.__file__).parent
OTHERS = [path for path in sorted(ROOT.rglob("*.py")) if not path.is_relative_to(ROOT / "providers")]
#: What belongs to one provider, as part of a name, or as a string of its own.
_WORDS = re.compile(
    r"(?i:slurm|\bs(batch|queue|run|cancel|control)\b|kube|(?<![a-z])pods?(?![a-z]))|(?<![a-z])Pods?(?=[A-Z_]|\b)"
)
#: A module without these need not be parsed, which takes longer.
_WORDS_ANYWHERE = re.compile("slurm|s(batch|queue|run|cancel|control)|kube|pod", re.IGNORECASE)


def dependences(tree: ast.AST) -> Iterator[str]:
    """Yield the names and the strings that depend on a provider; a text for people may name one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if " " not in node.value.strip() else []
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        else:
            fields = ("id", "attr", "name", "arg")
            names = [name for field in fields if isinstance(name := getattr(node, field, None), str)]
        yield from (name for name in names if _WORDS.search(name))


def test_no_module_depends_on_a_provider() -> None:
    with_words = {path: text for path in OTHERS if _WORDS_ANYWHERE.search(text := path.read_text())}
    found = {path: [*dependences(ast.parse(text))] for path, text in with_words.items()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import a.slurm",
        "from tfcluster.providers.kubernetes import kubectl",
        'x == "slurm"',
        'run(["squeue"])',
        "host.pods",
        "def place_pods(): pass",
        "f(is_slurm=1)",
        "class PodSet: pass",
    ],
)
def test_a_dependence_is_found(source: str) -> None:
    assert [*dependences(ast.parse(source))]
    assert not [*dependences(ast.parse("x = 'a pod of Kubernetes may say so'\nrun(podium)"))]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_provider_has_the_modules_that_are_looked_for(name: str) -> None:
    files = {path.name for path in (ROOT / "providers" / name).iterdir()}
    assert {"request.py", "provider.py", "host_side.py"} <= files


JOB = {"id": 7, "submitted": 1, "is_own": True, "output": "/slurm-7.out", "nodes": ["n1"], "ends": None}
EARLIER: dict[str, dict[str, Any]] = {
    "slurm": {"job": JOB, "pods": None},
    "kubernetes": {"job": None, "pods": {"cluster": "train", "context": "prod", "namespace": "ml"}},
}
HOSTS: dict[str, dict[str, Any]] = {
    "slurm": {"job": {"id": 7, "squeue": "/usr/bin/squeue", "grace": 120}, "image": None},
    "kubernetes": {"job": None, "image": "a/b"},
}


@pytest.mark.parametrize("name", EARLIER)
def test_a_cluster_that_version_0_2_0_has_started_keeps_its_provider(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    host = {"name": "a", "address": "n1", "connect": "x", **HOSTS[name]}
    header = {"format": FORMAT, "tfcluster": "0.2.0"}
    path = cluster_registry_path("train")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**header, "head": "a", "hosts": [host], **EARLIER[name]}))
    cluster = read_registry("train")
    assert cluster is not None
    assert cluster.provider is not None
    assert cluster.provider.name == name
    facts = {"slurm": JOB, "kubernetes": EARLIER["kubernetes"]["pods"]}[name]
    assert facts is not None
    assert cluster.provider.facts is not None
    assert cluster.provider.facts.items() >= facts.items()

    stored = to_json(topology_of("hosts: {a: }\njobs: {worker: {tasks: 1}}"))
    del stored["hosts"][0]["provided"]
    stored["hosts"][0] |= HOSTS[name]
    topology = from_stored(ClusterTopology, {**header, **from_earlier(stored)})
    assert topology.hosts[0].provided == Provided(name, HOSTS[name]["job"] or {})


def test_a_host_whose_provider_cannot_read_its_facts_is_an_error() -> None:
    for provided in (Provided("slurm", {}), Provided("lsf", {})):
        with pytest.raises(ClusterError, match="what provides this host"):
            load_host_side(provided)


def test_the_command_line_knows_the_commands_of_providers() -> None:
    assert {*_OF_PROVIDERS} == {*COMMANDS}


def test_an_entry_whose_provider_cannot_read_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = cluster_registry_path("train")
    path.parent.mkdir(parents=True)
    for provided in ({"provider": "slurm", "facts": {"id": "x"}}, {"provider": "lsf", "facts": {}}):
        entry = {"format": FORMAT, "tfcluster": "0.2.0", "head": "a", "hosts": [], "provided": provided}
        path.write_text(json.dumps(entry))
        with pytest.raises(ClusterError, match="cannot read the hosts of cluster 'train'"):
            read_registry("train")
