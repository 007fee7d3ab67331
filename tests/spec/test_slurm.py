"""`slurm:` in a spec: the nodes are the hosts, and what is wrong is reported at its place."""

from __future__ import annotations

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import parse_spec
from tfcluster.spec.schema import Spec
from tfcluster.spec.variables import SpecEnvironment

JOBS = "\njobs: {ps: {tasks: 1, hosts: [node0]}, worker: {tasks: 4}}\n"


def parse(text: str) -> Spec:
    return parse_spec(text + JOBS, "cluster.yaml", "demo")


def problems(text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        parse(text)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value.message


def test_the_nodes_are_the_hosts_and_have_the_keys_of_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    spec = parse('slurm: {nodes: 2, time: "8:00:00", gpus: 2}\nhost: {python: /tf/bin/python, slots: 2}')
    assert spec.hosts is not None
    assert spec.slurm is not None
    assert [*spec.hosts] == ["node0", "node1"]
    assert {host.python for host in spec.hosts.values()} == {"/tf/bin/python"}
    assert spec.placement_hosts(spec.jobs["worker"]) == ("node0", "node0", "node1", "node1")
    assert (spec.slurm.time, spec.slurm.gpus, spec.slurm.grace) == ("8:00:00", 2, 120)
    assert (spec.network, parse("slurm: {}\nnetwork: closed").network) == ("private", "closed")
    assert Spec.model_validate(spec.model_dump()) == spec


def test_without_a_number_the_nodes_are_those_of_the_allocation_and_jobs_can_name_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    for text in ("slurm:", "slurm: {}"):
        assert [*(parse(text).hosts or ())] == ["node0", "node1", "node2"]
    assert [*(parse("slurm: {nodes: 2}").hosts or ())] == ["node0", "node1"]
    assert "cluster.yaml:1:16: slurm.nodes: Slurm job 4711, which SLURM_JOB_ID names, has 3; `env -u SLURM_JOB_ID" in (
        problems("slurm: {nodes: 4}")
    )
    whole = parse_spec("slurm: {nodes: 4}" + JOBS, "cluster.yaml", "demo", SpecEnvironment(allocation={}))
    assert len(whole.hosts or ()) == 4, "`validate` does not depend on where it is typed"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert [*(parse("slurm: {}").hosts or ())] == ["node0"]
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ClusterError, match=r"jobs.a.hosts\[0\]: no host has the name 'node2'"):
        parse_spec("slurm: {nodes: 2}\njobs: {a: {tasks: 1, hosts: [node2]}}", "cluster.yaml", "demo")


PROBLEMS = {
    "slurm: {time: 8:00:00}": "cluster.yaml:1:15: slurm.time: YAML reads this as a number in base 60; write it",
    'slurm: {time: "8 hours"}': 'cluster.yaml:1:15: slurm.time: expected a time such as "8:00:00"',
    "slurm: {time: 90}": "cluster.yaml:1:15: slurm.time: expected text, found 90",
    "slurm: {nodes: 0}": "cluster.yaml:1:16: slurm.nodes: must be 1 or more",
    "slurm: 4": "cluster.yaml:1:8: slurm: expected the keys nodes",
    "slurm: {node: 4}": "cluster.yaml:1:9: slurm.node: unknown key; did you mean 'nodes'?",
    "slurm: {options: [--nodes=2]}": "cluster.yaml:1:19: slurm.options[0]: tfcluster sets this option itself",
    "slurm: {options: [-N2]}": "cluster.yaml:1:19: slurm.options[0]: tfcluster sets this option itself",
    "slurm: {options: [physics]}": "cluster.yaml:1:19: slurm.options[0]: expected an option of sbatch",
    "slurm: {}\nhosts: [node0]": "cluster.yaml:2:1: hosts: the hosts are the nodes of slurm:",
    "slurm: {}\nhost: {ssh: a}": "cluster.yaml:2:8: host.ssh: each node has its own",
    "slurm: {}\nhost: {stat: /a}": "cluster.yaml:2:8: host.stat: unknown key; did you mean 'state'?",
    "hosts: [node0]\nhost: {state: /a}": "cluster.yaml:2:1: host: it applies to each node of slurm:",
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_a_problem_is_reported_at_its_place(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert PROBLEMS[text] in problems(text)
