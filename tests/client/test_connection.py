"""`tfcluster.connect()`, whose runs have all options and need no TensorFlow; `exec` and `env` on several hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.project import Outcome, Project
from tfcluster.connection import ClusterConnection
from tfcluster.core.environment import client_variables
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST, socket_path, state_folder
from tfcluster.protocol.api import Done, Reply
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest
from tfcluster.protocol.api.runs import EventRecord, RunRequest

CURVE = {"mode": "single", "curve": [[1, 0.5], [2, 0.25]], "loss": 0.25, "seconds": 1.0, "seed": 7}
RESULT = {"event": "result", "run": "expfit-1", "program": "expfit", "state": "succeeded", "result": CURVE}


@pytest.fixture
def connection(project: Project) -> ClusterConnection:
    """A connection to a cluster whose runs succeed at once."""
    topology = project.bring_up("name: demo\njobs: {ps: {tasks: 1}, worker: {tasks: 2}}\n")
    project.patch.setenv("no_grpc_proxy", "")  # which the connection changes
    project.patch.chdir(project.folder)
    paths = sys.executable, str(ROOT), str(socket_path("demo", LOCAL_HOST)), str(state_folder("demo", LOCAL_HOST))
    variables = client_variables(topology, None, "localhost:1", {})
    project.agent.answer(EnvironmentRequest, [Reply(EnvironmentReply(variables, *paths, None))])
    project.agent.answer(RunRequest, [EventRecord(RESULT), Reply(Done())])
    return ClusterConnection()


@pytest.mark.parametrize(
    ("program", "options", "problem"),
    [
        ("expfit", {"compare": True, "mode": "single"}, "leave out --mode"),
        ("expfit", {"plot": "x.png", "detach": True}, "cannot be combined with --detach"),
        ("linear", {"steps": 3, "epochs": 3}, "give only one"),
        ("pi", {"samples": "many"}, "many"),
        ("pi", {"placement_graph": "x.svg"}, "placement_graph"),
        ("pi", {"cluster": "other"}, "cluster is not an option"),
        ("pi", {"output": "text"}, "output is not an option"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_cluster(
    project: Project, connection: ClusterConnection, program: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ClusterError, match=problem) as caught:
        connection.run(program, **options)
    assert caught.value.exit_code is ExitCode.USAGE
    assert project.agent.asked(RunRequest) == []


def test_the_plot_of_a_run_is_drawn(project: Project, connection: ClusterConnection) -> None:
    picture: Path = project.folder / "x.svg"
    assert connection.run("expfit", plot=picture) == CURVE
    assert picture.read_text().rstrip().endswith("</svg>")


def test_only_what_needs_tensorflow_imports_it(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    connection: ClusterConnection = request.getfixturevalue("connection")
    assert repr(connection) == f"<tfcluster demo at {connection.target}>"
    assert connection.target == "grpc://localhost:2223"
    with pytest.raises(ClusterError, match="this requires TensorFlow") as caught:
        connection.resolver()
    assert "pip install tensorflow" in caught.value.hint


def test_the_end_of_a_launch_is_told_by_its_command_or_if_that_is_detached_by_the_agent(project: Project) -> None:
    project.bring_up("name: demo\njobs: {worker: {tasks: 1}}\n")
    project.file("ends.py")
    result = {"exit_code": 3, "metrics": {"worker:0": {"loss": 0.5}}}
    error = {"message": "worker:0 ended with exit code 3", "hint": "", "exit_code": 3}
    end = {"event": "result", "run": "ends-1", "program": "script", "state": "failed", "seconds": 1.0, "result": result}
    project.agent.answer(RunRequest, [EventRecord({**end, "error": error, "notes": [], "devices": {}}), Reply(Done())])
    command = 'cat > told; echo "$TFCLUSTER_NOTICE_STATE $TFCLUSTER_NOTICE_EXIT_CODE" >> told'
    assert project.run(f"launch --notify '{command}' ends.py").code == 3
    notice, words = (project.folder / "told").read_text().splitlines()
    told = json.loads(notice)
    assert (told["event"], told["run"], told["result"], words) == ("run-finished", "ends-1", result, "failed 3")
    project.run("launch --detach ends.py", env={"TFCLUSTER_LAUNCH_NOTIFY": "cat"})
    assert [request.options.notify for request in project.agent.asked(RunRequest)] == [None, "cat"]


PAIR = "name: pair\nhosts: [alpha, beta]\njobs: {worker: {tasks: 2}}\n"


def test_a_host_that_is_away_is_named_and_all_is_no_host(project: Project) -> None:
    project.bring_up(PAIR)
    project.agent.away = {"beta"}
    error = "error: host 'beta' cannot be reached: no route to host\nhint: Type `ssh beta`.\n"
    assert project.run("exec --on beta -- true") == Outcome(5, "", error)
    outcome = project.run("exec --on all -- true")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("error: no task or host 'all'\n")


def test_a_machine_that_is_no_host_is_told_that_the_ports_are_closed_to_it(project: Project) -> None:
    topology = project.bring_up(PAIR)
    outcome = project.run("env --format json")
    assert outcome.code == 0
    assert json.loads(outcome.stdout)["TFCLUSTER_MASTER"] == f"grpc://{topology.tasks[0].address}"
    assert outcome.stderr == (
        "note: this machine is not a host of pair, whose servers only its hosts can connect to: "
        "`tfcluster exec --on alpha -- COMMAND` runs a command there\n"
    )
