"""Bad input: one clear message with its place, a hint and the right exit code; and no spec runs anything by itself."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from tests.project import Outcome, Project

BAD = """\
name: bad
jobs:
  ps: {tasks: -1}
  worker: {taks: 2}
  local: ["localhost:2222", "localhost:2222", "localhost:99999"]
network: shut
"""


@pytest.mark.parametrize("command", ["up", "validate"])
def test_every_problem_of_a_spec_at_once_each_with_its_place(project: Project, command: str) -> None:
    project.file("bad.yaml", BAD)
    outcome = project.run(f"{command} bad.yaml")
    assert (outcome.code, outcome.stdout) == (2, "")
    problems = {
        "3:15": "-1",
        "4:12": "did you mean 'tasks'",
        "5:29": "localhost:2222",
        "5:47": "99999",
        "6:10": "closed",
    }
    shown = dict(re.findall(r"bad\.yaml:(\d+:\d+): (.*)", outcome.stderr))
    assert shown.keys() >= problems.keys()
    assert [place for place, words in problems.items() if words not in shown[place]] == []
    assert project.agent.requests == []


# Each would run a program on this machine, or name a file that is none of the host's, were it taken as it stands.
SMUGGLED = """
name: wide
hosts:
  alpha: {address: 10.77.9.1, ssh: "-oProxyCommand=touch${IFS}marker"}
  beta: {address: 10.77.9.2, ssh: "tf@-oProxyCommand=touch${IFS}marker"}
  gamma: {address: "-oProxyCommand=touch${IFS}marker"}
  delta: {address: 10.77.9.4, ssh: "$(touch${IFS}marker)"}
  epsilon: {address: 10.77.9.5, python: "-cimport os", state: "-x"}
  -oProxyCommand=x:
jobs: {worker: {tasks: 2}}
"""


@pytest.mark.parametrize("command", ["up --dry-run", "doctor"])
def test_no_key_of_a_host_is_an_option_or_a_command(project: Project, command: str) -> None:
    project.file("cluster.yaml", SMUGGLED)
    outcome = project.run(command)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert re.findall(r" hosts\.(\S+): ", outcome.stderr) == [
        *("alpha.ssh", "beta.ssh", "gamma.address", "delta.ssh", "epsilon.python", "epsilon.state"),
        "-oProxyCommand=x",
    ]
    project.file("machines", "-oProxyCommand=x slots=1\n")
    project.file("cluster.yaml", "hostfile: machines\njobs: {worker: {tasks: 1}}\n")
    assert "expected the name of a host" in project.run(command).stderr
    assert project.agent.contacted == set()
    assert not (project.folder / "marker").exists()


@pytest.mark.parametrize(
    ("jobs", "code", "said"),
    [("{worker: {task: 2}}", 2, "/dev/stdin:1:"), ("{worker: {tasks: 2}}", 0, "cluster 'piped', 2 worker")],
)
def test_a_spec_may_come_from_standard_input(project: Project, jobs: str, code: int, said: str) -> None:
    outcome = project.run("validate -", typed=f"{{name: piped, jobs: {jobs}}}")
    assert outcome.code == code
    assert said in outcome.stdout + outcome.stderr


def test_validate_runs_nothing(project: Project) -> None:
    for program in ("ssh", "python3"):
        project.file(f"bin/{program}", f"#!/bin/sh\ntouch {project.folder}/marker\n").chmod(0o755)
    project.file("cluster.yaml", "name: w\nhosts: {alpha: {setup: [x], env: {A: b}}}\njobs: {worker: {tasks: 1}}\n")
    outcome = project.run("validate", env={"PATH": f"{project.folder}/bin:{os.environ['PATH']}"})
    assert outcome == Outcome(0, "cluster.yaml is valid: cluster 'w', 1 worker on alpha\n", "")
    assert not (project.folder / "marker").exists()
    assert project.agent.contacted == set()


@pytest.fixture
def gone(project: Project) -> Path:
    """A folder that is deleted when a command runs in it."""
    project.file("empty.py")
    project.file("far.yaml", "name: far\njobs: {worker: {tasks: 1}}\n")
    folder = project.folder / "gone"
    folder.mkdir()
    project.patch.chdir(folder)
    folder.rmdir()
    return folder


@pytest.mark.parametrize("line", ["run ../empty.py", "run -m this", "launch --workers 1 ../empty.py"])
def test_what_is_sent_from_a_folder_that_was_deleted_is_an_error(project: Project, gone: Path, line: str) -> None:
    outcome = project.run(line.replace("../", f"{project.folder}/"), cwd=None)
    error = f"error: the current folder {gone} was deleted\nhint: "
    assert (outcome.code, outcome.stdout, outcome.stderr[: len(error)]) == (1, "", error)


@pytest.mark.parametrize(("line", "code"), [("validate", 2), ("run empty.py", 2), ("init", 1), ("status", 3)])
def test_another_error_in_a_folder_that_was_deleted_says_so_too(
    project: Project, gone: Path, line: str, code: int
) -> None:
    outcome = project.run(line, cwd=None)
    assert outcome.code == code
    assert f"note: the current folder {gone} was deleted. " in outcome.stderr


@pytest.mark.usefixtures("gone")
def test_a_cluster_is_started_and_stopped_from_a_folder_that_was_deleted(project: Project) -> None:
    spec = project.folder / "far.yaml"
    for line in (f"validate {spec}", f"up {spec}", "status", "down"):
        outcome = project.run(line, cwd=None)
        assert outcome.code == 0, outcome


def test_the_dashboard_refuses_a_port_that_is_taken_and_a_run_that_it_does_not_find(project: Project) -> None:
    project.bring_up("jobs: {worker: {tasks: 1}}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = project.run(f"dashboard --no-browser --port {port}")
    assert refused.code == 2
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use" in refused.stderr
    unknown = project.run("dashboard --no-browser no-such-run")
    assert (unknown.code, "no run 'no-such-run'" in unknown.stderr) == (2, True)
