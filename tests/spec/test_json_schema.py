"""The JSON schema of the spec, which editors read: it accepts what `validate` accepts, and refuses nothing else."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from tests.conftest import ROOT
from tests.spec import test_properties
from tests.spec.test_refusals import FILES as REFUSALS
from tfcluster.cli.spec import SCHEMA, TEMPLATE
from tfcluster.errors import ClusterError
from tfcluster.spec.load import parse_spec

VALIDATOR = Draft7Validator(json.loads(SCHEMA.read_text()))
MANY = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def accepts(text: str) -> bool:
    """Whether `tfcluster validate` accepts a spec."""
    try:
        parse_spec(text, "c.yaml", "c")
    except ClusterError:
        return False
    return True


def written_specs() -> list[str]:
    """The specs of the README, of docs and of the examples, and the template with all of its keys."""
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    blocks = [
        re.sub(f"(?m)^{indent}", "", text) for each in documents for indent, text in BLOCK.findall(each.read_text())
    ]
    examples = [path.read_text() for path in (ROOT / "examples").rglob("*.yaml")]
    return [text for text in [TEMPLATE, test_properties.VALID, *blocks, *examples] if accepts(text)]


def errors_of(text: str) -> list[str] | None:
    """What the schema refuses of a spec; None if the text is not YAML for every reader."""
    try:
        value = json.loads(json.dumps(yaml.safe_load(text), allow_nan=False))
    except (yaml.YAMLError, TypeError, ValueError):
        return None
    return [each.message for each in VALIDATOR.iter_errors(value)]


def test_the_schema_is_what_the_models_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    generate = runpy.run_path(str(ROOT / "docs" / "make_schema.py"))["spec_schema"]
    assert json.loads(SCHEMA.read_text()) == generate(), "run `make docs`"


def test_check_jsonschema_accepts_every_written_spec(tmp_path: Path) -> None:
    files = []
    for number, text in enumerate(written_specs()):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(text)
    assert len(files) > 10
    command = [sys.executable, "-m", "check_jsonschema"]
    checked = subprocess.run(
        [*command, "--schemafile", SCHEMA, *files], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout
    meta = subprocess.run([*command, "--check-metaschema", SCHEMA], capture_output=True, text=True, check=False)
    assert meta.returncode == 0, meta.stdout


#: The files of tests/spec/refusals in which only `validate` finds what is wrong.
ONLY_VALIDATE = {
    *(
        "host-without-provider",
        "hostfile-and-hosts",
        "hostfile-folder",
        "hostfile-lines",
        "hostfile-missing",
        "hostfile-none",
        "hosts-connect",
    ),
    *("hosts-localhost", "hosts-paths", "hosts-ssh", "hosts-unreachable", "job-hosts-unknown", "job-restart-order"),
    *("job-same-address", "kubernetes-host", "kubernetes-name", "kubernetes-name-digit", "kubernetes-name-long"),
    *("kubernetes-network", "logs-sizes", "notify-secret", "restart-order", "slurm-unknown-node", "too-many-tasks"),
    "variables",
}


def test_it_marks_the_mistakes_that_need_no_knowledge_of_other_keys() -> None:
    assert {file.stem for file in REFUSALS if errors_of(file.read_text()) == []} == ONLY_VALIDATE


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place in a value: its parent, and its key there."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from places_in(each)


@MANY
@given(test_properties.valid_specs(), st.data())
def test_the_schema_accepts_valid_specs_and_whatever_else_validate_accepts(
    value: dict[str, Any], data: st.DataObject
) -> None:
    assert not errors_of(yaml.safe_dump(value))
    parent, key = data.draw(st.sampled_from([*places_in(value)]))
    parent[key] = data.draw(
        test_properties.VALUES | st.sampled_from(["2 in 3", "1 MB", 5, 2.5, None, {}, ["localhost"]])
    )
    text = yaml.safe_dump(value)
    if accepts(text):
        assert not errors_of(text)


MISTAKES = [
    "jobs: {a: {task: 1}}",
    "jobs: {a: {tasks: 0}}",
    "jobs: {}",
    "jobs: {a: 3}",
    "jobs: {1a: {tasks: 1}}",
    "jobs: {a: {tasks: 1, restart: {limit: 5 per 60}}}",
    "jobs: {a: {tasks: 1, env: {1A: x}}}",
    "jobs: {a: {tasks: 1}}\nname: -a",
    "jobs: {a: {tasks: 1}}\nnetwork: shut",
    "jobs: {a: {tasks: 1}}\nlogs: {size: ten}",
    "jobs: {a: {tasks: 1}}\nhosts: [1]",
]


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_marked_in_the_editor(text: str) -> None:
    assert errors_of(text)
