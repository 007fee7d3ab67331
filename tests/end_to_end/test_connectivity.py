"""What `doctor` and `up` say of hosts that cannot connect to each other: a line for each host and cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.hosts import over

NAMES = ("alpha", "beta", "gamma", "delta")
JOBS = f"jobs:\n  worker: {{tasks: 8, hosts: [{', '.join(NAMES)}]}}\n"


@pytest.mark.slow
def test_a_host_that_is_cut_off_from_several_is_one_problem_in_each_direction(
    needs_network: None, tmp_path: Path
) -> None:
    with over(tmp_path, *NAMES, has_sshd=False) as four:
        four.spec(four.text(NAMES, JOBS))
        *others, delta = map(four.network.address, NAMES)
        with four.network.network["delta"].losing(*others):
            told = four.json("doctor", code=1)["checks"]
            lines = four("up", code=1).stderr.splitlines()
        wait_for(lambda: not four.leftovers())
    failed = [(check["host"], check["check"]) for check in told if not check["ok"]]
    assert failed == [("delta", "network")] * 2
    assert {check["host"] for check in told if check["check"] == "network"} == {"delta"}
    found = [line for line in lines if line.startswith("  host ")]
    first, second = sorted(found)
    assert first.startswith(f"  host 'delta' cannot be reached from alpha, beta, gamma at {delta}:")
    assert second.startswith("  host 'delta' reaches none of the hosts that it tried (3): ")
    assert "error: Nothing was started; 2 problems found:" in lines, lines
