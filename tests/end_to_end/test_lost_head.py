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
WORKER = "/job:worker/task:0/device:CPU:0"
LOST = "host 'alpha' cannot be reached: connection timed out"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A chief on alpha, which leads, and the other tasks on beta."""
    with make_sandbox(tmp_path_factory.mktemp("two"), _PLAYED) as sandbox:
        sandbox("up", sandbox.spec(SPEC, warm=True))
        yield sandbox


@pytest.mark.slow
def test_another_host_leads_a_run_which_all_commands_find(two: Sandbox) -> None:
    before = two.json("run", "pi", "--samples", "1e5", "--devices", "/job:worker")["run"]
    with away(two, "alpha"):
        shown = two("run", "pi", "--samples", "1e5", "--devices", "/job:worker", "-o", "json")
        result = json.loads(shown.stdout.splitlines()[-1])
        run = result["run"]
        assert list(result["devices"]) == [WORKER]
        assert shown.stderr == f"{LOST}: host 'beta' leads the run\n"
        listed = two("runs", "-o", "json", code=5)
        assert [each["run"] for each in json.loads(listed.stdout)] == [run]
        assert f"error: {LOST}\n" in listed.stderr
        assert two.json("attach", run) == result
        two("logs", run)
        assert f"{LOST}, and no other host has a run {before!r}" in two("attach", before, code=5).stderr
        assert LOST in two("run", "pi", "--devices", "/job:chief", code=5).stderr, "no other host has it"
    # When it is back, the runs of all hosts are listed, and found.
    assert [each["run"] for each in two.json("runs")][-2:] == [before, run]
    for each in (before, run):
        two("attach", each)
        assert two("cancel", each).stdout == f"{each} succeeded\n"


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
