"""`exec` and `env` before agents that the test plays: hosts that are away, and the notes on what is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest

from tests.conftest import ROOT
from tests.project import Outcome, Project
from tfcluster.core.environment import client_variables
from tfcluster.paths import socket_path, state_folder
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest


@pytest.fixture
def pair(project: Project) -> Project:
    """A cluster on the hosts alpha and beta."""
    project.bring_up("name: pair\nhosts: [alpha, beta]\njobs: {worker: {tasks: 2}}\n")

    def answer(request: EnvironmentRequest, host: str) -> Sequence[object]:
        paths = str(socket_path("pair", host)), str(state_folder("pair", host))
        variables = {**client_variables(project.agent.up["pair"], None, f"{host}:1", {}), "WHERE": f"on {host}"}
        return [Reply(EnvironmentReply(variables, sys.executable, str(ROOT), *paths, None))]

    project.agent.answer(EnvironmentRequest, answer)
    return project


def test_a_host_that_is_away_is_named_and_all_is_no_host(pair: Project) -> None:
    pair.agent.away = {"beta"}
    error = "error: host 'beta' cannot be reached: no route to host\nhint: Type `ssh beta`.\n"
    assert pair.run("exec --on beta -- true") == Outcome(5, "", error)
    outcome = pair.run("exec --on all -- true")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("error: no task or host 'all'\n")


def test_a_machine_that_is_no_host_is_told_that_the_ports_are_closed_to_it(pair: Project) -> None:
    outcome = pair.run("env --format json")
    assert outcome.code == 0
    assert json.loads(outcome.stdout)["TFCLUSTER_MASTER"] == f"grpc://{pair.agent.up['pair'].tasks[0].address}"
    assert outcome.stderr == (
        "note: this machine is not a host of pair, whose servers only its hosts can connect to: "
        "`tfcluster exec --on alpha -- COMMAND` runs a command there\n"
    )
