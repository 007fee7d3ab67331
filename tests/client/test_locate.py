"""Which run a name means on a cluster of several hosts, and what the hosts say of a script that waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.project import Outcome, Project
from tfcluster.client.resolve import resolve_cluster
from tfcluster.client.runs.wait_diagnosis import ask_hosts
from tfcluster.client.tensorboard import find_folders
from tfcluster.core.states import RunState, TaskState
from tfcluster.errors import usage_error
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import StatusReply, StatusRequest
from tfcluster.protocol.api.processes import TaskThreadsReply, TaskThreadsRequest
from tfcluster.protocol.api.runs import CancelRequest, RunsReply, RunsRequest, RunSummary


def run_of(name: str) -> RunSummary:
    return RunSummary(name, "pi", {"logdir": "/logs"}, RunState.SUCCEEDED, 1.0, 1.0, None, None, None, None)


def with_runs(project: Project, runs: Mapping[str, list[str]]) -> Project:
    """A cluster with the head alpha, whose hosts have these runs; a host without a list cannot be reached."""
    project.bring_up("name: far\nhosts: [alpha, beta]\njobs: {worker: {tasks: 2}}\n")
    project.agent.away = {"alpha", "beta"} - runs.keys()
    project.agent.answer(
        RunsRequest, lambda request, host: [Reply(RunsReply(tuple(run_of(name) for name in runs[host])))]
    )
    return project


ON_BOTH = {"alpha": ["baseline-1a2b"], "beta": ["base-3f9a"]}


@pytest.mark.parametrize(
    ("runs", "name", "expected"),
    [
        (ON_BOTH, "base", ("beta", "base-3f9a")),  # which is not the beginning of the other host's
        (ON_BOTH, "baseline", ("alpha", "baseline-1a2b")),
        (ON_BOTH, "base-", ("beta", "base-3f9a")),
        (ON_BOTH, "unknown", ("alpha", "unknown")),
        ({"beta": ["pi-1a2b"]}, "pi", ("beta", "pi-1a2b")),
        ({"alpha": ["pi-1a2b"]}, "pi-1a2b", ("alpha", "pi-1a2b")),
    ],
)
def test_the_run_that_a_name_means(
    project: Project, runs: Mapping[str, list[str]], name: str, expected: tuple[str, str]
) -> None:
    project.agent.answer(CancelRequest, [usage_error("it has ended")])
    with_runs(project, runs).run(f"cancel {name}")
    asked = [(host, request.run) for host, request in project.agent.requests if isinstance(request, CancelRequest)]
    assert asked == [expected]
    if name == "pi-1a2b":
        assert "beta" not in project.agent.contacted, "the head's id is asked of no other host"


@pytest.mark.parametrize(
    ("runs", "name", "code", "error"),
    [
        (ON_BOTH, "bas", 2, "several runs begin with 'bas': base-3f9a, baseline-1a2b"),
        ({"beta": ["pi-1a2b"]}, "mean", 5, "cannot be reached: no route to host, and no other host has a run 'mean'"),
    ],
)
def test_a_name_that_means_no_run(
    project: Project, runs: Mapping[str, list[str]], name: str, code: int, error: str
) -> None:
    outcome = with_runs(project, runs).run(f"cancel {name}")
    assert outcome.code == code
    assert error in outcome.stderr
    assert project.agent.asked(CancelRequest) == []


def test_tensorboard_finds_a_run_by_its_name_too(project: Project) -> None:
    project.bring_up("name: demo\njobs: {worker: {tasks: 1}}\n")
    project.patch.chdir(project.folder)
    project.agent.runs = [run_of("baseline-1a2b"), run_of("base-3f9a")]
    (found,) = find_folders(resolve_cluster(None), "base")
    assert (found.name, found.folders) == ("base-3f9a", ("/logs",))
    no_folder = project.run("tensorboard /nothing")
    assert (no_folder.code, no_folder.stdout) == (2, "")
    assert "there is no folder /nothing on this machine" in no_folder.stderr
    assert "base-3f9a has no data for TensorBoard" in project.run("tensorboard base").stderr
    assert project.run("tensorboard mean") == Outcome(
        2,
        "",
        "error: there is no folder and no run 'mean'\n"
        "hint: `tfcluster runs` lists the runs. A folder on another host is HOST:LOGDIR.\n",
    )


TASK = "/job:worker/task:1"
SEEN = "worker:1 at 10.0.0.2:2222 on beta refuses connections"
EVENT = {
    "event": "waiting",
    "call": "Session.run",
    "file": "/home/me/train.py",
    "line": 12,
    "function": "main",
    "seconds": 4.0,
    "message": f"train.py:12 waits in Session.run: {SEEN}",
    "problems": [{"problem": SEEN, "hint": "look", "task": TASK, "host": "beta"}],
}


def ask(project: Project, problem: str | None, versions: tuple[str, str] = ("2.21.0", "2.21.0")) -> dict[str, Any]:
    """The event after host beta has said what is wrong with the task; None if it cannot be reached."""
    with_runs(project, {"alpha": []} if problem is None else {"alpha": [], "beta": []})
    agent = project.agent
    reply = TaskThreadsReply(TASK, "beta", TaskState.READY, 7, problem or "", "type this", (), ())
    agent.answer(TaskThreadsRequest, [Reply(reply)])

    def answer(request: StatusRequest, host: str) -> list[object]:
        status = agent.status("far", host)
        hosts = (replace(status.hosts[0], tensorflow=versions[host == "beta"]),)
        return [Reply(StatusReply(replace(status, hosts=hosts), 0))]

    agent.answer(StatusRequest, answer)
    project.patch.chdir(project.folder)
    event = ask_hosts(resolve_cluster(None), EVENT)
    assert [request.task for request in agent.asked(TaskThreadsRequest)] == [TASK] * (problem is not None)
    return event


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ("worker:1 on beta died and is backing off", "worker:1 on beta died and is backing off", "type this"),
        ("", f"{SEEN}, although it answers on beta", "Let alpha connect to it; `tfcluster doctor "),
        (None, f"{SEEN} (host 'beta' cannot be reached: no route to host)", "look"),
    ],
)
def test_the_host_of_the_task_knows_what_is_wrong(project: Project, said: str | None, message: str, hint: str) -> None:
    event = ask(project, said)
    assert event["message"] == f"train.py:12 waits in Session.run: {message}"
    (problem,) = event["problems"]
    assert problem["problem"] == message
    assert problem["hint"].startswith(hint)


def test_another_tensorflow_is_named(project: Project) -> None:
    event = ask(project, "worker:1 on beta is starting", ("2.21.0", "2.20.0"))
    assert event["message"].endswith("worker:1 on beta is starting; host beta runs TensorFlow 2.20.0, alpha 2.21.0")
    assert "pip install tensorflow==2.21.0" in event["problems"][-1]["hint"]
