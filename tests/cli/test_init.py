"""`tfcluster init` writes the template, whose keys are valid; `validate` sums a spec up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfcluster.cli.spec import SCHEMA, TEMPLATE, init_command, schema_command, validate_command
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import parse_spec
from tfcluster.spec.policies import Backoff, JobRestart, Logs, RestartSpec
from tfcluster.spec.schema import Job, Spec

WRITTEN = f"# yaml-language-server: $schema={SCHEMA.as_uri()}\n{TEMPLATE}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_template_goes_to_standard_output_or_to_the_file_and_names_the_schema_that_is_printed(folder: Path) -> None:
    result = CliRunner().invoke(init_command, ["-"])
    assert (result.exit_code, result.stdout) == (0, WRITTEN)
    assert list(folder.iterdir()) == []
    result = CliRunner().invoke(init_command, ["my spec.yaml"])
    assert result.stdout == "wrote my spec.yaml; start the cluster with `tfcluster up 'my spec.yaml'`\n"
    assert (folder / "my spec.yaml").read_text() == WRITTEN
    assert json.loads(CliRunner().invoke(schema_command).stdout) == json.loads(SCHEMA.read_text())


def test_a_file_that_exists_is_not_overwritten(folder: Path) -> None:
    (folder / "cluster.yaml").write_text("mine")
    error = CliRunner().invoke(init_command).exception
    assert isinstance(error, ClusterError)
    assert (error.message, error.exit_code) == ("cluster.yaml exists already", ExitCode.USAGE)
    assert (folder / "cluster.yaml").read_text() == "mine"


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


def test_a_spec_is_as_valid_in_a_job_of_slurm_as_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text("name: good\nslurm: {nodes: 3}\njobs: {a: {tasks: 3, hosts: [node2]}}\n")
    outside = CliRunner().invoke(validate_command)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    inside = CliRunner().invoke(validate_command)
    assert (inside.exit_code, inside.stdout) == (outside.exit_code, outside.stdout) == (0, outside.stdout)
    assert "is valid: cluster 'good', 3 a" in outside.stdout


COMMENTED_OUT = re.compile(r"^( *)#(?=\w+: )", re.MULTILINE)
KEYS = [match.start() for match in COMMENTED_OUT.finditer(TEMPLATE)]


def test_the_template_has_one_ps_and_two_workers_and_all_commented_keys_are_valid_together() -> None:
    spec = parse_spec(TEMPLATE, "cluster.yaml", "cluster")
    assert spec == Spec(name="cluster", jobs={"ps": Job(tasks=(None,)), "worker": Job(tasks=(None, None))})
    spec = parse_spec(COMMENTED_OUT.sub(r"\1", TEMPLATE), "cluster.yaml", "cluster")
    in_the_place_of_hosts = {"hostfile", "slurm", "kubernetes", "host"}
    assert spec.model_fields_set == set(Spec.model_fields) - in_the_place_of_hosts
    assert spec.jobs["worker"].model_fields_set == set(Job.model_fields)
    assert spec.jobs["worker"].restart == JobRestart(policy="never")
    assert spec.restart.model_fields_set == set(RestartSpec.model_fields)
    assert spec.restart.backoff.model_fields_set == set(Backoff.model_fields)
    assert spec.restart == RestartSpec()  # it shows the defaults
    assert spec.logs.model_fields_set == set(Logs.model_fields)
    assert spec.logs == Logs()


@pytest.mark.parametrize("start", KEYS)
def test_each_commented_key_is_valid(start: int) -> None:
    text = TEMPLATE[:start] + COMMENTED_OUT.sub(r"\1", TEMPLATE[start:], count=1)
    parse_spec(text, "cluster.yaml", "cluster")
