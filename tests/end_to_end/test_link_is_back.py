"""A run that begins as soon as a link is back uses the tasks there, although connections were stalled meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.hosts import over

NAMES = ("alpha", "beta")
# The kernel doubles the time until it sends a segment again that was not answered: after so long, some seconds pass
# after the outage before a connection recovers.
OUTAGE_SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.needs("sshd")
@pytest.mark.parametrize("network", ["closed", "private"])
def test_a_run_that_begins_when_a_link_is_back_uses_the_tasks_there(tmp_path: Path, network: str) -> None:
    with over(tmp_path, *NAMES) as sandbox:
        jobs = f"network: {network}\njobs: {{worker: {{tasks: 2, hosts: [alpha, beta]}}}}\n"
        # The agent of alpha asks beta's task all the time.
        sandbox("up", sandbox.spec(sandbox.text(NAMES, jobs + "notify: {command: 'true', events: [host-away]}\n")))
        sandbox("run", "pi", "--samples", "1e5")
        with sandbox.without("link", "beta"):
            time.sleep(OUTAGE_SECONDS)
        result = sandbox.json("run", "pi", "--samples", "1e7")
        assert sorted(result["devices"]) == [f"/job:worker/task:{index}/device:CPU:0" for index in range(2)]
        assert result["notes"] == []
        sandbox("down")
