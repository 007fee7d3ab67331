"""`kubernetes:` in a spec: the pods are the hosts, and what is wrong is reported at its place."""

from __future__ import annotations

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import parse_spec
from tfcluster.spec.schema import Spec

JOBS = "\njobs: {ps: {tasks: 1}, worker: {tasks: 4}}\n"


def parse(text: str, jobs: str = JOBS) -> Spec:
    return parse_spec(text + jobs, "cluster.yaml", "demo")


def problems(text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        parse(text)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value.message


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


PROBLEMS = {
    "kubernetes: {pods: 2}": "cluster.yaml:1:1: kubernetes.image: this key is missing",
    "kubernetes: {image: a b}": "cluster.yaml:1:21: kubernetes.image: expected the name of an image",
    "kubernetes: {image: a, pods: 0}": "cluster.yaml:1:30: kubernetes.pods: must be 1 or more",
    "kubernetes: {image: a, namespace: My_Space}": "cluster.yaml:1:35: kubernetes.namespace: expected a DNS label",
    f"kubernetes: {{image: a, namespace: {'n' * 64}}}": "kubernetes.namespace: expected a DNS label",
    "kubernetes: {image: a, memory: 32 GB}": "cluster.yaml:1:32: kubernetes.memory: expected a quantity",
    "kubernetes: {image: a, cpus: 4}": "cluster.yaml:1:24: kubernetes.cpus: unknown key; did you mean 'cpu'?",
    "kubernetes: {image: a, context: --insecure}": "kubernetes.context: expected the name of a context",
    "kubernetes: 4": "cluster.yaml:1:13: kubernetes: expected the keys pods",
    "kubernetes: {image: a}\nhosts: [pod0]": "cluster.yaml:2:1: hosts: the hosts are the pods of kubernetes:",
    "kubernetes: {image: a}\nslurm: {}": "cluster.yaml:2:1: slurm: the hosts are the pods of kubernetes:",
    "kubernetes: {image: a}\nhost: {ssh: a}": "cluster.yaml:2:8: host.ssh: the manifests say it for each pod",
    "kubernetes: {image: a}\nnetwork: private": "cluster.yaml:2:10: network: pods cannot make their own network",
    "name: Train\nkubernetes: {image: a}": "cluster.yaml:1:7: name: expected a name for pods: a-z, 0-9 and -",
    "name: 1a\nkubernetes: {image: a}": "cluster.yaml:1:7: name: expected a name for pods",
    f"name: {'n' * 53}\nkubernetes: {{image: a}}": "cluster.yaml:1:7: name: expected a name for pods",
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_a_problem_is_reported_at_its_place(text: str) -> None:
    assert PROBLEMS[text] in problems(text)
