"""Variables in the strings of a spec, and `~/` in its paths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.spec.test_json_schema import errors_of
from tfcluster.cli.spec import SCHEMA
from tfcluster.errors import ClusterError
from tfcluster.spec.cluster_name import read_name
from tfcluster.spec.load import _TYPED_KEYS, load_spec, parse_spec
from tfcluster.spec.schema import Job, Spec
from tfcluster.spec.variables import SpecEnvironment, says_place

VARIABLES = {
    **{"NAME": "demo", "N": "3", "YES": "false", "EMPTY": "", "TOKEN": "hunter2", "WORD": "words", "SIZE": "5 MB"},
}


def parse(text: str, variables: Mapping[str, str] = VARIABLES, *, only_place: bool = False) -> Spec:
    return parse_spec(text, "c.yaml", "c", SpecEnvironment(variables, only_place=only_place))


def text_of(value: str) -> Any:
    """What the value of an environment variable of a job's tasks is read as."""
    return parse(f"jobs: {{a: {{tasks: 1, env: {{X: {json.dumps(value)}}}}}}}").jobs["a"].env["X"]


@pytest.mark.parametrize(
    ("written", "read"),
    {
        "${NAME}": "demo",
        "<${NAME}-${N}>": "<demo-3>",
        "${EMPTY}": "",
        "${NONE:-other}": "other",
        "${EMPTY:-other}": "other",
        "${NAME:-other}": "demo",
        "${NONE:-}": "",
        "$${NAME}": "${NAME}",
        "$$$$": "$$",
        "$$$${NAME}": "$${NAME}",
        "$${NAME:-${NAME}}": "${NAME:-demo}",
        # For a shell, or nothing that has a meaning.
        "$NAME $(id) $1 $? $": "$NAME $(id) $1 $? $",
    }.items(),
)
def test_a_text_has_the_values_of_variables(written: str, read: str) -> None:
    assert text_of(written) == read


def test_the_value_of_a_variable_is_a_text_of_its_own() -> None:
    spec = parse("jobs: {a: {tasks: 1, env: {X: '${A}'}}}", {"A": '${B} $$ # it\'s: *no* "yaml"'})
    assert spec.jobs["a"].env["X"] == '${B} $$ # it\'s: *no* "yaml"'


def test_only_the_name_is_required_to_find_a_running_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("name: ${A_NAME}\njobs: {a: {tasks: '${NOT_SET}'}}\nhosts: ['${NOT_SET}']\n")
    assert read_name(file) == (None, True)
    monkeypatch.setenv("A_NAME", "found")
    assert read_name(file) == ("found", True)


def test_only_the_keys_of_the_place_are_required_to_find_a_cluster_that_is_not_running() -> None:
    elsewhere = (
        "jobs: {a: {tasks: '${NONE}', cpus: '${NONE}', restart: {policy: '${NONE}'}, env: {T: {secret: '${NONE}'}}}}\n"
        "network: ${NONE}\nwarm: ${NONE}\nlogs: {size: '${NONE}'}\nnotify: {webhook: '${NONE}'}\nlease: ${NONE}\n"
    )
    (task,) = parse(elsewhere, only_place=True).jobs["a"].tasks
    assert task is None
    places = [
        *("name: ${NONE}", "hosts: ['${NONE}']", "slurm: {nodes: '${NONE}'}", "kubernetes: {image: '${NONE}'}"),
        *("hosts: {b: {ssh: '${NONE}'}}", "hosts: [b]\njobs: {a: {tasks: 1, hosts: ['${NONE}']}}"),
        "hosts: [b]\njobs: {a: ['${NONE}:2222']}",
    ]
    for place in places:
        with pytest.raises(ClusterError, match="the variable NONE is not set"):
            parse(place if "jobs" in place else elsewhere + place, only_place=True)


def test_each_key_at_the_top_says_where_a_cluster_is_or_does_not() -> None:
    place = {"name", "jobs", "hosts", "hostfile", "host", "setup", "slurm", "kubernetes"}
    assert {name for name in Spec.model_fields if says_place((name,))} == place & {*Spec.model_fields}
    assert {name for name in Job.model_fields if says_place(("jobs", "a", name))} == {"tasks", "hosts"}


def accepts_no_text(schema: dict[str, Any]) -> bool:
    """Whether the values of a key may be numbers, true or false."""
    types = schema.get("type", ())
    is_typed = not {"integer", "number", "boolean"}.isdisjoint([types] if isinstance(types, str) else types)
    return is_typed or any(map(accepts_no_text, schema.get("anyOf", ())))


def keys_of(schema: Any) -> Iterator[str]:
    """Yield the keys in a JSON schema whose values may be numbers, true or false."""
    if isinstance(schema, dict):
        yield from (name for name, each in schema.get("properties", {}).items() if accepts_no_text(each))
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from keys_of(each)


def test_the_keys_with_numbers_are_those_of_the_schema() -> None:
    quantities = {"cpu", "memory", "storage"}  # numbers there are texts, too
    assert {*keys_of(json.loads(SCHEMA.read_text()))} - quantities == _TYPED_KEYS


@pytest.mark.parametrize(
    "text",
    [
        "name: ${A}\nnetwork: ${A}\nwarm: ${A}\njobs: {a: {tasks: '${A}', cpus: '${A}', restart: {limit: '${A}'}}}",
        "jobs: {a: ['${A}', 'x:${A}']}\nhosts: {x: {tls_port: '${A}', address: '${A}'}}\nlogs: {size: '${A}'}",
        "jobs: {a: {tasks: 1}}\nslurm: {nodes: '${A}', time: '${A}', options: ['${A}']}\nlease: ${A}",
    ],
)
def test_the_json_schema_accepts_variables_in_every_value(text: str) -> None:
    assert errors_of(text) == []
    assert errors_of(text.replace("${A}", "a b"))


def test_a_hostfile_can_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "machines").write_text("alpha slots=2\n")
    file = tmp_path / "c.yaml"
    file.write_text("hostfile: ~/machines\njobs: {a: {tasks: 1}}\n")
    assert [*(load_spec(file).hosts or ())] == ["alpha"]
