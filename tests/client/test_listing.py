"""The list of clusters, by `ls` and by a `status` that does not say which one is meant; its exit code."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.project import Outcome, Project
from tfcluster import settings
from tfcluster.core.states import TaskState
from tfcluster.paths import LOCAL_HOST, cluster_registry_path
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import StatusReply, StatusRequest

LOST = "cannot be reached: no route to host"
SPECS = {
    "well": "jobs: {worker: {tasks: 2}}\n",
    "fine": "jobs: {worker: {tasks: 1}}\n",
    "ill": "jobs: {lame: {tasks: 1}, worker: {tasks: 1}}\n",
    "down": "hosts: [delta]\njobs: {worker: {tasks: 1}}\n",
    "away": "hosts: [alpha]\njobs: {worker: {tasks: 1}}\n",
    "partly": "hosts: [beta, gamma]\njobs: {worker: {tasks: 2}}\n",
}


def with_clusters(project: Project, *names: str) -> None:
    """Bring up clusters in different states."""
    project.agent.started = 100.0
    project.agent.states = {"lame:0": TaskState.FAILED}
    project.agent.away = {"alpha", "gamma"}
    for name in names:
        project.bring_up(f"name: {name}\n{SPECS[name]}", f"{name}.yaml")


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["well", "fine"], 0),
        (["well", "ill"], 4),
        (["well", "down"], 4),
        (["well", "ill", "partly"], 5),
        (["well", "ill", "away"], 5),
    ],
)
def test_a_status_of_several_clusters_lists_them_with_an_exit_code(
    project: Project, names: list[str], code: int
) -> None:
    with_clusters(project, *names)
    if "down" in names:
        project.agent.go_down("down", "delta")
    for option in ("", " -o json"):
        shown = project.run(f"ls{option}")
        assert shown.code == 0
        assert project.run(f"status{option}") == shown._replace(code=code)


def test_no_cluster_is_an_empty_list(project: Project) -> None:
    assert project.run("ls -o json") == Outcome(0, "[]\n", "")
    outcome = project.run("ls")
    assert (outcome.code, outcome.stdout) == (0, "")
    assert "no cluster is up" in outcome.stderr


def test_each_cluster_has_a_row_with_its_state_or_why_there_is_none(project: Project) -> None:
    with_clusters(project, *SPECS)
    cluster_registry_path("broken").parent.mkdir(parents=True)
    cluster_registry_path("broken").write_text("{")
    project.agent.go_down("down", "delta")
    fields = ("cluster", "state", "ready", "tasks", "hosts", "started", "error", "hint")
    down = "cluster 'down' is not running on any of its hosts"
    forget = "`tfcluster up` starts it there; `tfcluster down` forgets its hosts."
    rows = json.loads(project.run("ls -o json").stdout)
    broken = rows.pop(1)
    assert [tuple(each[field] for field in fields) for each in rows] == [
        ("away", "unreachable", 0, 0, ["alpha"], None, f"host 'alpha' {LOST}", "Type `ssh alpha`."),
        ("down", "stopped", 0, 0, ["delta"], None, down, forget),
        ("fine", "running", 1, 1, ["localhost"], 100.0, None, None),
        ("ill", "degraded", 1, 2, ["localhost"], 100.0, None, None),
        ("partly", "degraded", 1, 2, ["beta", "gamma"], 100.0, f"host 'gamma' {LOST}", "Type `ssh gamma`."),
        ("well", "running", 2, 2, ["localhost"], 100.0, None, None),
    ]
    assert [each["spec"] for each in rows] == [str(project.folder / f"{each['cluster']}.yaml") for each in rows]
    assert (broken["cluster"], broken["state"], broken["hosts"]) == ("broken", "unreachable", [])
    assert str(cluster_registry_path("broken")) in broken["error"]


def test_a_lost_host_is_named_in_its_row_alone(project: Project) -> None:
    with_clusters(project, "well", "partly")
    project.patch.setattr(settings, "HOST_ERROR_DELAY_SECONDS", 0.0)

    def answer_late(request: StatusRequest, host: str) -> Iterator[object]:
        time.sleep(0.3 if host == "beta" else 0.0)
        cluster = "well" if host == LOCAL_HOST else "partly"
        yield Reply(StatusReply(project.agent.status(cluster, host), 1))

    project.agent.answer(StatusRequest, answer_late)
    shown = project.run("ls")
    assert (shown.code, shown.stderr) == (0, "")
    assert f"host 'gamma' {LOST}" in " ".join(shown.stdout.split())


def test_the_status_of_one_cluster_says_when_it_was_started(project: Project) -> None:
    with_clusters(project, "well", "ill")
    assert json.loads(project.run("status -c well -o json").stdout)["started"] == 100.0
