"""`top` with a cluster on this machine and on a host over a real sshd, whose link comes and goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.test_ssh import over
from tests.screens import Terminal

_JOBS = "jobs:\n  worker: {tasks: 2, hosts: [localhost, alpha]}\n"


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_a_host_over_ssh_is_shown_goes_away_and_comes_back(tmp_path: Path) -> None:
    with over(tmp_path, "alpha") as sandbox:
        sandbox("up", sandbox.spec(sandbox.text(("alpha",), _JOBS)))
        with Terminal([*sandbox.command, "top"], sandbox.environment, sandbox.folder, columns=100) as top:
            top.wait_for(
                "^ wide  running  2 of 2 tasks ready on 2 hosts",
                r"^ alpha +up +CPU +\d+% of \d+  memory \d",
                r"^ localhost +up +CPU +\d+% of \d+  memory \d",
                r"^worker:0 +localhost +ready .* MiB",
                r"^worker:1 +alpha +ready .* MiB",
                "q Quit",
            )
            with sandbox.without("sshd", "alpha"):
                top.wait_for(r"^ alpha +away since \d\d:\d\d:\d\d", r"^worker:1 +alpha +unresponsive")
                # This machine is shown as it changes, and what it uses is measured.
                sandbox("restart", "worker:0", "--yes", code=None)
                top.wait_for("localhost worker:0 +stopping +restarting, requested by")
                top.wait_for(r"^worker:0 +localhost +ready .* MiB", r"^ localhost +up +CPU +\d", r"^ alpha +away since")
            top.wait_for(
                r"^ alpha +up +CPU +\d+% of \d+", r"^worker:1 +alpha +ready .* MiB", "2 of 2 tasks ready on 2 hosts"
            )
            top.send("q")
            assert top.wait_for_end() == 0
        sandbox("down")
