"""The commands on a cluster whose leading host cannot be reached: what the other hosts can do is done."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import Sandbox, make_sandbox
from tests.end_to_end.test_hosts import _HOSTS, _PLAYED, away, book

SPEC = (
    f"name: two\n{_HOSTS}jobs:\n  chief: {{tasks: 1, hosts: [alpha]}}\n"
    "  ps: {tasks: 1, hosts: [beta]}\n  worker: {tasks: 1, max: 3, hosts: [beta]}\n"
)
LOST = "host 'alpha' cannot be reached: connection timed out"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A chief on alpha, which leads, and the other tasks on beta."""
    with make_sandbox(tmp_path_factory.mktemp("two"), _PLAYED) as sandbox:
        sandbox("up", sandbox.spec(SPEC, warm=True))
        yield sandbox


@pytest.mark.slow
def test_no_run_is_started_and_those_that_there_are_are_found_when_it_is_back(two: Sandbox) -> None:
    before = two.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    with away(two, "alpha"):
        assert LOST in two("run", "pi", "--samples", "1e5", "--devices", "/job:worker", code=5).stderr
        listed = two("runs", "-o", "json", code=5)
        assert json.loads(listed.stdout) == []
        assert f"error: {LOST}\n" in listed.stderr
        assert f"{LOST}, and no other host has a run {before!r}" in two("attach", before, code=5).stderr
    assert [each["run"] for each in two.json("runs")] == [before]
    assert two("cancel", before).stdout == f"{before} succeeded\n"


@pytest.mark.slow
def test_jobs_on_the_other_hosts_are_scaled(two: Sandbox) -> None:
    with away(two, "alpha"):
        shown = two("scale", "worker=2")
        assert "two is up: 1 task started" in shown.stdout
        assert f"{LOST}: its tasks are unchanged" in shown.stderr
        assert book(two) == ["alpha", "beta"]
        refused = two("scale", "chief=2", code=5)
        assert f"{LOST}, and the change concerns chief:1 there: nothing was changed" in refused.stderr
        refused = two("scale", "worker=5", "--yes", code=5)
        assert "its servers would have to learn new addresses: nothing was changed" in refused.stderr
    assert "host alpha has missed a change" in two("scale", "worker=2").stdout
    assert "nothing changed" in two("scale", "worker=2").stdout
    assert [task["state"] for task in two.status()["tasks"]] == ["ready"] * 4


@pytest.mark.slow
def test_a_run_of_an_earlier_head_task_is_found(two: Sandbox) -> None:
    before = two.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    spec = two.folder / "cluster.yaml"
    more = SPEC.replace("{tasks: 1, max: 3, hosts: [beta]}", "{tasks: 2, hosts: [beta, alpha]}")
    for text in (more, more.replace("[alpha]}", "[beta]}", 1)):
        spec.write_text(text)
        two("up", spec, "--yes")
    run = two.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    assert [each["run"] for each in two.json("runs")][-2:] == [before, run]
    for each in (before, run):
        two("attach", each)
        assert two("cancel", each).stdout == f"{each} succeeded\n"
