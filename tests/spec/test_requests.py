"""`slurm:` and `kubernetes:` in a spec: the nodes or pods are the hosts; test_refusals.py has what is wrong there."""

from __future__ import annotations

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import parse_spec
from tfcluster.spec.schema import Spec
from tfcluster.spec.variables import SpecEnvironment

ON_NODES = "\njobs: {ps: {tasks: 1, hosts: [node0]}, worker: {tasks: 4}}\n"
JOBS = "\njobs: {ps: {tasks: 1}, worker: {tasks: 4}}\n"


def parse(text: str, jobs: str = JOBS) -> Spec:
    return parse_spec(text + jobs, "cluster.yaml", "demo")


def test_the_nodes_are_the_hosts_and_have_the_keys_of_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    spec = parse('slurm: {nodes: 2, time: "8:00:00", gpus: 2}\nhost: {python: /tf/bin/python, slots: 2}', ON_NODES)
    assert spec.hosts is not None
    assert spec.slurm is not None
    assert [*spec.hosts] == ["node0", "node1"]
    assert {host.python for host in spec.hosts.values()} == {"/tf/bin/python"}
    assert spec.placement_hosts(spec.jobs["worker"]) == ("node0", "node0", "node1", "node1")
    assert (spec.slurm.time, spec.slurm.gpus, spec.slurm.grace) == ("8:00:00", 2, 120)
    assert (spec.network, parse("slurm: {}\nnetwork: closed").network) == ("private", "closed")
    assert Spec.model_validate(spec.model_dump()) == spec


def test_without_a_number_the_nodes_are_those_of_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    for text in ("slurm:", "slurm: {}"):
        assert [*(parse(text).hosts or ())] == ["node0", "node1", "node2"]
    assert [*(parse("slurm: {nodes: 2}").hosts or ())] == ["node0", "node1"]
    with pytest.raises(ClusterError) as caught:
        parse("slurm: {nodes: 4}")
    assert caught.value.exit_code is ExitCode.USAGE
    assert "cluster.yaml:1:16: slurm.nodes: Slurm job 4711, which SLURM_JOB_ID names, has 3; `env -u SLURM_JOB_ID" in (
        caught.value.message
    )
    whole = parse_spec("slurm: {nodes: 4}" + JOBS, "cluster.yaml", "demo", SpecEnvironment(allocation={}))
    assert len(whole.hosts or ()) == 4, "`validate` does not depend on where it is typed"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert [*(parse("slurm: {}").hosts or ())] == ["node0"]


def test_the_pods_are_the_hosts_and_have_the_keys_of_host() -> None:
    spec = parse("kubernetes: {pods: 3, image: a/b, cpu: 8, memory: 32Gi}\nhost: {python: /tf/bin/python}")
    assert spec.hosts is not None
    assert spec.kubernetes is not None
    assert [*spec.hosts] == ["pod0", "pod1", "pod2"]
    assert {host.python for host in spec.hosts.values()} == {"/tf/bin/python"}
    assert (spec.kubernetes.cpu, spec.kubernetes.memory, spec.kubernetes.gpus) == ("8", "32Gi", 0)
    assert spec.network == "closed"
    assert parse(f"name: {'n' * 52}\nkubernetes: {{image: a}}").name == "n" * 52
    assert Spec.model_validate(spec.model_dump()) == spec


def test_ps_tasks_have_pods_of_their_own_unless_the_spec_places_them() -> None:
    spec = parse("kubernetes: {pods: 3, image: a/b}")
    assert spec.jobs["ps"].hosts == ("pod0",)
    assert spec.jobs["worker"].hosts == ("pod1", "pod2")
    placed = parse("kubernetes: {pods: 3, image: a/b}", "\njobs: {ps: {tasks: 1, hosts: [pod2]}, worker: {tasks: 4}}\n")
    assert placed.placement_hosts(placed.jobs["worker"]) == ("pod0", "pod1", "pod2")
    alone = parse("kubernetes: {pods: 1, image: a/b}")
    assert {alone.placement_hosts(job) for job in alone.jobs.values()} == {("pod0",)}
    many = parse("kubernetes: {pods: 2, image: a/b}", "\njobs: {ps: {tasks: 5}, worker: {tasks: 1}}\n")
    assert (many.jobs["ps"].hosts, many.jobs["worker"].hosts) == (("pod0",), ("pod1",))
