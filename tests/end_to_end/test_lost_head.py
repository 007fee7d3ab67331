"""The commands on a cluster whose leading host cannot be reached: what the other hosts can do is done."""

from __future__ import annotations

import json

import pytest

from tests.clusters import Cluster
from tests.conftest import Sandbox
from tests.end_to_end.test_hosts import _HOSTS, away, book

#: A chief on alpha, which leads, and the other tasks on beta.
SPEC = (
    f"name: two\n{_HOSTS}jobs:\n  chief: {{tasks: 1, hosts: [alpha]}}\n"
    "  ps: {tasks: 1, hosts: [beta]}\n  worker: {tasks: 1, max: 3, hosts: [beta]}\n"
)
LOST = "host 'alpha' cannot be reached: connection timed out"


CLUSTER = Cluster(SPEC, warm=True, is_played=True)


@pytest.mark.slow
def test_no_run_is_started_and_those_that_there_are_are_found_when_it_is_back(cluster: Sandbox) -> None:
    before = cluster.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    with away(cluster, "alpha"):
        assert LOST in cluster("run", "pi", "--samples", "1e5", "--devices", "/job:worker", code=5).stderr
        listed = cluster("runs", "-o", "json", code=5)
        assert json.loads(listed.stdout) == []
        assert f"error: {LOST}\n" in listed.stderr
        assert f"{LOST}, and no other host has a run {before!r}" in cluster("attach", before, code=5).stderr
    assert [each["run"] for each in cluster.json("runs")] == [before]
    assert cluster("cancel", before).stdout == f"{before} succeeded\n"


@pytest.mark.slow
def test_jobs_on_the_other_hosts_are_scaled(cluster: Sandbox) -> None:
    with away(cluster, "alpha"):
        shown = cluster("scale", "worker=2")
        assert "two is up: 1 task started" in shown.stdout
        assert f"{LOST}: its tasks are unchanged" in shown.stderr
        assert book(cluster) == ["alpha", "beta"]
        refused = cluster("scale", "chief=2", code=5)
        assert f"{LOST}, and the change concerns chief:1 there: nothing was changed" in refused.stderr
        refused = cluster("scale", "worker=5", "--yes", code=5)
        assert "its servers would have to learn new addresses: nothing was changed" in refused.stderr
    assert "host alpha has missed a change" in cluster("scale", "worker=2").stdout
    assert "nothing changed" in cluster("scale", "worker=2").stdout
    assert [task["state"] for task in cluster.status()["tasks"]] == ["ready"] * 4


@pytest.mark.slow
def test_a_run_of_an_earlier_head_task_is_found(cluster: Sandbox) -> None:
    before = cluster.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    spec = cluster.folder / "cluster.yaml"
    more = SPEC.replace("{tasks: 1, max: 3, hosts: [beta]}", "{tasks: 2, hosts: [beta, alpha]}")
    for text in (more, more.replace("[alpha]}", "[beta]}", 1)):
        spec.write_text(text)
        cluster("up", spec, "--yes")
    run = cluster.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    assert [each["run"] for each in cluster.json("runs")][-2:] == [before, run]
    for each in (before, run):
        cluster("attach", each)
        assert cluster("cancel", each).stdout == f"{each} succeeded\n"
