"""`down`: the order in which hosts stop, the runs that it cancels, and what it says of hosts that it cannot reach."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.project import Outcome, Project
from tfcluster.client.cluster import Cluster, read_registry
from tfcluster.client.down import take_down
from tfcluster.core.states import RunState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import DownReply, DownRequest
from tfcluster.protocol.api.runs import RunSummary

WIDE = (
    "name: wide\nhosts: {alpha: , beta: , gamma: }\n"
    "jobs: {ps: {tasks: 1, hosts: [alpha]}, worker: {tasks: 2, hosts: [beta, gamma]}}"
)
RUN = RunSummary("pi-1a2b", "pi", {}, RunState.RUNNING, 61.0, 1.0, None, None, None, None)


@pytest.fixture
def wide(project: Project) -> Project:
    """A cluster whose ps is on the first of three hosts."""
    project.bring_up(WIDE)
    return project


def stopped(project: Project) -> list[str]:
    """Return the hosts that were told to stop, in this order."""
    return [host for host, request in project.agent.requests if isinstance(request, DownRequest)]


def test_hosts_with_a_ps_are_stopped_last(wide: Project) -> None:
    outcome = wide.run("down --grace 2")
    assert (outcome.code, outcome.stdout) == (0, "wide is down: 3 tasks stopped\n")
    *others, last = stopped(wide)
    assert (sorted(others), last) == (["beta", "gamma"], "alpha")
    assert {request.grace for request in wide.agent.asked(DownRequest)} == {2.0}
    assert read_registry("wide") is None


def test_the_others_are_stopped_and_what_may_run_on_a_host_that_is_away_is_named(wide: Project) -> None:
    wide.agent.away = {"gamma"}
    outcome = wide.run("down")
    assert (outcome.code, outcome.stdout) == (5, "")
    assert outcome.stderr.endswith(
        "error: host 'gamma' cannot be reached: no route to host\n"
        "these tasks may still be running there: worker:1 on gamma; the rest of 'wide' is stopped\n"
        "hint: Type `ssh gamma`. Then `tfcluster down -c wide` completes it.\n"
    )
    assert stopped(wide) == ["beta", "alpha"]
    remaining = read_registry("wide")
    assert remaining is not None
    assert [*remaining.hosts] == ["gamma"]
    wide.agent.away.clear()
    assert wide.run("down").code == 0
    assert stopped(wide) == ["beta", "alpha", "gamma"]


@pytest.mark.parametrize(
    ("terminal", "typed", "code", "error", "is_stopped"),
    [
        (False, "", 0, "demo: this cancels run pi-1a2b (running for 1m 1s)\n", True),
        (True, "n\n", 1, "running for 1m 1s)\nContinue? [y/N]: error: demo: nothing was stopped\n", False),
        (True, "y\n", 0, "running for 1m 1s)\nContinue? [y/N]: ", True),
    ],
)
def test_on_a_terminal_runs_are_cancelled_only_with_consent(
    project: Project, terminal: bool, typed: str, code: int, error: str, is_stopped: bool
) -> None:
    project.bring_up("name: demo\njobs: {worker: {tasks: 1}}\n")
    project.agent.runs = [RUN]
    outcome = project.run("down", typed=typed, terminal=terminal, env={"TERM": "dumb", "NO_COLOR": "1"})
    assert outcome.code == code
    assert error in outcome.stderr
    assert bool(stopped(project)) is is_stopped


def test_a_warning_of_an_agent_and_an_error_of_a_host_are_shown(wide: Project) -> None:
    def answer(request: DownRequest, host: str) -> list[object]:
        return [ClusterError("no space left")] if host == "gamma" else [Reply(DownReply("the journal was damaged"))]

    wide.agent.answer(DownRequest, answer)
    outcome = wide.run("down")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "warning: the journal was damaged\n" in outcome.stderr
    assert outcome.stderr.endswith("error: host 'gamma': no space left\nhint: Type `tfcluster down` again.\n")


def test_the_end_of_each_cluster_is_json_if_that_is_asked_for(project: Project) -> None:
    for name in ("one", "two"):
        project.bring_up(f"name: {name}\njobs: {{worker: {{tasks: 1}}}}\n", f"{name}/cluster.yaml")
    one, two = '{"cluster": "one", "state": "stopped"}\n', '{"cluster": "two", "state": "stopped"}\n'
    assert project.run("down --all -o json") == Outcome(0, one + two, "")
    assert project.run("down --all") == Outcome(3, "", "error: no cluster is running\n")


def test_if_a_provider_cannot_forget_the_tasks_none_is_stopped(wide: Project) -> None:
    problem = ClusterError("kubectl has not answered", hint="Try it later.", exit_code=ExitCode.UNREACHABLE)
    provider = Mock(facts={"cluster": "wide", "context": "here", "namespace": "ml"})
    provider.forget_topology.side_effect = problem
    cluster = Cluster("wide", wide.agent.up["wide"].hosts, "beta", provider)
    with pytest.raises(ClusterError, match=r"^nothing was stopped: kubectl has not answered"):
        take_down(cluster, 1.0, None, lambda status: None)
    assert stopped(wide) == []
    provider.release.assert_not_called()
