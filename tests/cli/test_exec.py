"""`exec` and `env` before agents that the test plays: hosts that are away, interrupts, and the notes on what is shown.

The commands that run on hosts are real processes, on this machine.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Sequence

import pytest

from tests.conftest import ROOT
from tests.project import Outcome, Project
from tfcluster.client.exec import HostCommands
from tfcluster.client.resolve import find_cluster
from tfcluster.core.environment import client_variables
from tfcluster.paths import socket_path, state_folder
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest

# A command leaves its pipes to the end of its process.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


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


def commands(project: Project, script: str) -> HostCommands:
    """Run a script on both hosts."""
    project.patch.chdir(project.folder)
    return HostCommands(find_cluster("pair"), ["sh", "-c", script])


def test_a_command_runs_on_all_hosts_at_once_and_one_that_is_away_is_named(pair: Project) -> None:
    script = """exec --on all -- sh -c 'echo "$WHERE"; test "$WHERE" = "on alpha" || exit 5'"""
    outcome = pair.run(script)
    assert (outcome.code, outcome.stderr) == (5, "")
    shown = sorted(
        (host.strip(), text) for host, _, text in (line.partition(" | ") for line in outcome.stdout.splitlines())
    )
    assert shown == [("alpha", "on alpha"), ("beta", "on beta")]
    pair.agent.away = {"beta"}
    error = "error: host 'beta' cannot be reached: no route to host\nhint: Type `ssh beta`.\n"
    assert pair.run(script) == Outcome(5, "alpha | on alpha\n", error)
    assert pair.run("exec --on beta -- true") == Outcome(5, "", error)


def test_a_machine_that_is_no_host_is_told_that_the_ports_are_closed_to_it(pair: Project) -> None:
    outcome = pair.run("env --format json")
    assert outcome.code == 0
    assert json.loads(outcome.stdout)["TFCLUSTER_MASTER"] == f"grpc://{pair.agent.up['pair'].tasks[0].address}"
    assert outcome.stderr == (
        "note: this machine is not a host of pair, whose servers only its hosts can connect to: "
        "`tfcluster exec --on alpha -- COMMAND` runs a command there\n"
    )


def test_the_first_interrupt_is_passed_on_and_raises_nothing(pair: Project) -> None:
    previous = signal.getsignal(signal.SIGINT)
    with commands(pair, "trap 'echo interrupted; exit 3' INT; echo started; while :; do sleep 0.01; done") as running:
        with running.pass_interrupt():
            shown = []
            for each in running.lines():
                shown.append((each.host, each.line))
                if len(shown) == 2:
                    signal.raise_signal(signal.SIGINT)
        expected = [(host, line) for host in ("alpha", "beta") for line in ("interrupted", "started")]
        assert sorted(shown) == expected
        assert running.is_interrupted
        assert running.exit_code == 3
        with running.pass_interrupt():
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is previous


def test_an_interrupt_that_does_not_end_the_wait_for_a_line_is_passed_on(pair: Project) -> None:
    """The kernel may give a signal to another thread, or just before the wait: the wait for a line continues."""

    def interrupt() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    script = "trap 'exit 4' INT; echo started; while :; do sleep 0.01; done"
    with commands(pair, script) as running, running.pass_interrupt():
        for number, each in enumerate(running.lines()):
            assert each.line == "started"
            if number == 1:
                threading.Thread(target=interrupt).start()
    assert running.exit_code == 4


def test_a_command_that_a_signal_ends_has_the_exit_code_of_a_shell(pair: Project) -> None:
    with commands(pair, "kill -KILL $$") as running:
        assert list(running.lines()) == []
        assert running.exit_code == 128 + signal.SIGKILL
