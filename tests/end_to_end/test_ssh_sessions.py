"""How many sessions of ssh commands need on a host: one for `up`, and none for later ones."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.test_ssh import over

JOBS = "jobs:\n  worker: {tasks: 1}\n"


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_one_session_prepares_a_host_and_later_commands_start_none(tmp_path: Path) -> None:
    with over(tmp_path, "alpha") as sandbox:
        hosts = sandbox.network
        sandbox("up", sandbox.spec(sandbox.text(("alpha",), JOBS)))
        assert hosts.sessions() == 1
        sandbox("status")
        sandbox("run", "pi", "--samples", "1000")
        sandbox("runs")
        sandbox("logs")
        assert hosts.sessions() == 1
        agent, *_ = (pid for pid, line in hosts.processes().items() if line.startswith("tfcluster: wide agent"))
        os.kill(agent, signal.SIGKILL)
        sandbox("status")  # starts the next agent
        sandbox("status")
        assert hosts.sessions() == 2
        sandbox("down")
        assert hosts.sessions() == 2
        assert hosts.leftovers() == []
