"""Hosts in a spec: secrets and addresses; test_layouts.py has what a spec may say, test_refusals.py what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.base import Secret
from tfcluster.spec.hosts import host_for_address
from tfcluster.spec.load import load_spec, parse_spec
from tfcluster.spec.schema import Spec
from tfcluster.spec.variables import SpecEnvironment

JOBS = "jobs: {a: {tasks: 1}}\n"


def spec_of(text: str) -> Spec:
    return parse_spec(text, "c.yaml", "c")


def test_a_range_without_quotes_is_explained() -> None:
    with pytest.raises(ClusterError) as caught:
        spec_of(JOBS + "hosts: [lab[1-3], other]")
    assert caught.value.message.startswith("c.yaml:2:12: not valid YAML: ")
    assert caught.value.message.endswith('; write the range in quotes: "lab[1-3]"')


def test_a_secret_is_not_printed() -> None:
    job = spec_of("jobs: {a: {tasks: 1, env: {A: plain, B: {secret: xyzzy}}}}").jobs["a"]
    assert job.env == {"A": "plain", "B": Secret(secret="xyzzy")}
    assert (job.variables(), job.secrets()) == ({"A": "plain", "B": "xyzzy"}, ("B",))
    assert "xyzzy" not in repr(job) + str(job)


def test_an_address_is_resolved_to_the_host_with_the_address_or_the_name() -> None:
    addresses = {"alpha": "10.0.0.1", "beta": "beta.example.org", "gamma": "fd00::1"}
    written = ("alpha", "10.0.0.1", "beta.example.org", "Beta.Example.org", "fd00:0:0::1", "10.0.0.2", "localhost")
    assert [host_for_address(each, addresses) for each in written] == [
        *("alpha", "alpha", "beta", "beta", "gamma", None, None)
    ]


def test_a_hostfile_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("#" * (settings.SPEC_MAX_BYTES + 1))
    (tmp_path / "c.yaml").write_text("hostfile: hosts.txt\n" + JOBS)
    with pytest.raises(ClusterError) as caught:
        load_spec(tmp_path / "c.yaml")
    assert caught.value.message == f"{tmp_path / 'hosts.txt'}:1:1: the file is larger than 1 MiB"


def test_without_a_number_the_nodes_are_those_of_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    for text in ("slurm:", "slurm: {}"):
        assert [*(spec_of(f"{text}\n{JOBS}").hosts or ())] == ["node0", "node1", "node2"]
    assert [*(spec_of("slurm: {nodes: 2}\n" + JOBS).hosts or ())] == ["node0", "node1"]
    four = "slurm: {nodes: 4}\n" + JOBS
    with pytest.raises(ClusterError) as caught:
        spec_of(four)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "c.yaml:1:16: slurm.nodes: Slurm job 4711, which SLURM_JOB_ID names, has 3; `env -u SLURM_JOB_ID" in (
        caught.value.message
    )
    whole = parse_spec(four, "c.yaml", "c", SpecEnvironment(allocation={}))
    assert len(whole.hosts or ()) == 4, "`validate` does not depend on where it is typed"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert [*(spec_of("slurm: {}\n" + JOBS).hosts or ())] == ["node0"]
