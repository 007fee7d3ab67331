"""`tfcluster init` writes the template to a file that does not exist, or to standard output; `validate` sums it up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfcluster.cli.spec import SCHEMA, TEMPLATE, init_command, schema_command, validate_command
from tfcluster.errors import ClusterError, ExitCode

WRITTEN = f"# yaml-language-server: $schema={SCHEMA.as_uri()}\n{TEMPLATE}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dash_stands_for_standard_output(folder: Path) -> None:
    result = CliRunner().invoke(init_command, ["-"])
    assert (result.exit_code, result.stdout) == (0, WRITTEN)
    assert list(folder.iterdir()) == []


def test_the_template_is_written_to_the_file_with_the_next_command(folder: Path) -> None:
    result = CliRunner().invoke(init_command, ["my spec.yaml"])
    assert result.stdout == "wrote my spec.yaml; start the cluster with `tfcluster up 'my spec.yaml'`\n"
    assert (folder / "my spec.yaml").read_text() == WRITTEN


def test_a_file_that_exists_is_not_overwritten(folder: Path) -> None:
    (folder / "cluster.yaml").write_text("mine")
    error = CliRunner().invoke(init_command).exception
    assert isinstance(error, ClusterError)
    assert (error.message, error.exit_code) == ("cluster.yaml exists already", ExitCode.USAGE)
    assert (folder / "cluster.yaml").read_text() == "mine"


def test_the_schema_that_the_file_names_is_the_one_that_is_printed() -> None:
    assert json.loads(CliRunner().invoke(schema_command).stdout) == json.loads(SCHEMA.read_text())


def test_a_valid_spec_is_summarized_without_the_values_of_variables() -> None:
    Path("cluster.yaml").write_text("name: good\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n")
    assert CliRunner().invoke(validate_command).stdout == "cluster.yaml is valid: cluster 'good', 1 ps, 2 worker\n"
    Path("cluster.yaml").write_text(
        "jobs: {a: {tasks: 3, env: {A: xyzzy, B: {secret: xyzzy}}}}\n"
        "hosts: {alpha: {address: 10.0.0.1, env: {C: xyzzy}}, beta: }\n"
    )
    assert CliRunner().invoke(validate_command).stdout.endswith(", 3 a on alpha, beta\n")
    shown = CliRunner().invoke(validate_command, ["-o", "json"]).stdout
    assert "xyzzy" not in shown
    assert json.loads(shown)["tasks"][0]["env"] == {"C": "***", "A": "***", "B": "***"}
